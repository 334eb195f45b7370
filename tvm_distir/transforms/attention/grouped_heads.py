# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite products over groups of heads, as JAX writes them, into products of five dims.

``jax.nn.dot_product_attention`` and einsums over heads that share keys merge two free dims of a
side into one, and move the dims of the scores before the softmax and behind it. With
``q (B, N, T, G, D)``, ``k (B, N, D, S)`` and ``v (B, N, E, S)``, before::

    scores = permute(reshape(matmul(reshape(q), k), (B, N, T, G, S)), [3, 0, 1, 2, 4])
    mixed = reshape(matmul(v, reshape(permute(softmax(scores), [1, 2, 4, 0, 3]))), (B, N, E, G, T))

After, where all that moves dims stands before the scores or behind the result::

    scores = matmul(permute(q, [0, 1, 3, 2, 4]), k_)          # (B, N, G, T, S)
    mixed = permute(matmul(softmax(scores), v_), [0, 1, 4, 2, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var, op

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import op_name, permutation

_RANK = 5
_SWAP = [0, 1, 3, 2]
_HEADS_BEFORE_POSITIONS = [0, 1, 3, 2, 4]
_SCALINGS = ("multiply", "divide", "astype")
_MAIN_OPERANDS = {
    **dict.fromkeys((*_SCALINGS, "nn.softmax"), (0,)), "add": (0, 1), "where": (1, 2),
}  # fmt: skip
"""The operands of an op on scores that may be the scores."""


class GroupedHeads:
    """Rewriter of the calls that compute attention over groups of heads.

    Parameters
    ----------
    value_of : callable
        Returns the value of a variable, or None.
    emit : callable
        Binds a value and returns its variable.
    """

    def __init__(self, value_of: Callable[[Any], Any], emit: Callable[[Any, str], Any]) -> None:
        self._value_of, self._emit = value_of, emit
        self._scores: set[Var] = set()
        self._weights: set[Var] = set()

    def rewritten(self, call: ir.Call, name: str) -> Any:
        """Return a call that computes the same, or None to leave the call."""
        kind = op_name(call)
        if len(known_shape(call.ty) or ()) != _RANK:
            return None
        if kind == "reshape":
            return self._split(call, name)
        if kind == "permute_dims":
            return self._moved(call, name)
        return self._computed(call, kind, name) if kind in _MAIN_OPERANDS else None

    def _split(self, call: Any, name: str) -> Any:
        """Return the product of five dims of which a reshape splits the rows or the columns."""
        product, shape = self._value_of(call.args[0]), known_shape(call.ty)
        merged = known_shape(product.ty) if op_name(product) == "matmul" else None
        if shape is None or merged is None or len(merged) != _RANK - 1 or shape[:2] != merged[:2]:
            return None
        left, right = product.args
        if len({len(known_shape(side.ty) or ()) for side in product.args}) != 1:
            return None
        rows = self._before_reshape(left, (*shape[:4], -1))
        if rows is not None and shape[4] == merged[3]:
            weights, order = self._unmoved(rows)
            if weights in self._weights and order[:2] == [0, 1] and order[4] == 4:
                return self._mixed(weights, right, [0, 1, *order[2:4], 4], name)
            keys = self._expanded(self._emit(op.permute_dims(right, _SWAP), name), name)
            keys = self._emit(op.permute_dims(keys, [0, 1, 2, 4, 3]), name)
            dtype = product.attrs.out_dtype
            scores = self._emit(op.matmul(rows, keys, out_dtype=dtype or None), name)
            self._scores.add(scores)
            return op.permute_dims(scores, [*range(_RANK)])  # which is the scores themselves
        columns = self._before_reshape(right, (*shape[:2], -1, *shape[3:]))
        if columns is None or shape[2] != merged[2]:
            return None
        weights, order = self._unmoved(columns)
        if weights not in self._weights or order[:3] != [0, 1, 4]:
            return None
        values = self._emit(op.permute_dims(left, _SWAP), name)
        return self._mixed(weights, values, [0, 1, 4, *order[3:]], name)

    def _mixed(self, weights: Any, values: Any, order: Sequence[int], name: str) -> Any:
        """Return the product of weights and values with its dims in another order."""
        mixed = self._emit(op.matmul(weights, self._expanded(values, name)), name)
        return op.permute_dims(mixed, list(order))

    def _before_reshape(self, expr: Expr, shape: tuple[int, ...]) -> Any:
        """Return the operand of five dims whose reshape a value is; -1 is any size."""
        view = self._value_of(expr)
        wide = known_shape(view.args[0].ty) if op_name(view) == "reshape" else None
        if wide is None or len(wide) != _RANK:
            return None
        return view.args[0] if all(n in (-1, m) for n, m in zip(shape, wide, strict=True)) else None

    def _expanded(self, expr: Expr, name: str) -> Any:
        """Return keys or values ``(B, N, S, D)`` with a dim for the heads that share them."""
        return self._emit(op.expand_dims(expr, 2), name)

    def _unmoved(self, expr: Expr) -> tuple[Any, list[int]]:
        """Return a value and the order in which an expression has its dims."""
        value = self._value_of(expr)
        if op_name(value) != "permute_dims":
            return expr, [*range(len(expr.ty.shape))]
        return value.args[0], permutation(value)

    def _moved(self, call: Any, name: str) -> Any:
        """Return a permutation of a permutation as one; scores with positions before keys."""
        source = call.args[0]
        inner, axes = self._unmoved(source)
        if inner is source:
            return None
        return op.permute_dims(inner, [axes[i] for i in permutation(call)])

    def _computed(self, call: Any, kind: str, name: str) -> Any:
        """Return what is computed of permuted scores as a permutation of what scores give."""
        for position in _MAIN_OPERANDS[kind]:
            scores, order = self._unmoved(call.args[position])
            if scores not in self._scores and scores not in self._weights:
                continue
            if order[3] == 2:
                swapped = self._swapped(scores, name)
                if swapped is None:
                    return None
                scores, order = swapped, [_HEADS_BEFORE_POSITIONS[i] for i in order]
            others = [None if i == position else self._placed(x, order, name)
                      for i, x in enumerate(call.args)]  # fmt: skip
            if order[3:] != [3, 4] and kind == "nn.softmax":
                return None
            operands = [scores if x is None else x for x in others]
            result = self._emit(relax.Call(call.op, operands, call.attrs), name)
            softened = kind == "nn.softmax" or scores in self._weights
            (self._weights if softened else self._scores).add(result)
            return op.permute_dims(result, order)
        return None

    def _swapped(self, scores: Any, name: str) -> Any:
        """Return scaled scores with the dims of positions and of shared heads exchanged."""
        value = self._value_of(scores)
        if op_name(value) == "matmul":
            rows, axes = self._unmoved(value.args[0])
            order = [axes[i] for i in _HEADS_BEFORE_POSITIONS]
            rows = self._emit(op.permute_dims(rows, order), name)
            operands = [rows, value.args[1]]
        elif op_name(value) in _SCALINGS:
            if any(len(x.ty.shape) for x in value.args[1:]):
                return None
            below = self._swapped(value.args[0], name)
            if below is None:
                return None
            operands = [below, *value.args[1:]]
        else:
            return None
        result = self._emit(relax.Call(value.op, operands, value.attrs), name)
        self._scores.add(result)
        return result

    def _placed(self, expr: Expr, order: Sequence[int], name: str) -> Any:
        """Return another operand with its dims at those of scores that are in an order."""
        shape = known_shape(expr.ty) or ()
        if not shape or (not any(n > 1 for n in shape[:-2]) and list(order[3:]) == [3, 4]):
            return expr
        if len(shape) < _RANK:
            shape = (*[1] * (_RANK - len(shape)), *shape)
            expr = self._emit(op.reshape(expr, shape), name)
        return self._emit(op.permute_dims(expr, [order.index(i) for i in range(_RANK)]), name)
