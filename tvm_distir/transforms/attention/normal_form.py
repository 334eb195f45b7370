# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite attention as PyTorch and JAX decompose it into the form that is matched.

Each rewrite computes the same values:

- a reshape to the same shape is its operand;
- ``reshape(matmul(reshape(a), reshape(b)))``, as of ``bmm``, is ``matmul(a, b)`` with two batches;
- ``exp(x - m) / sum(exp(x - m))`` with a number ``m`` per row is a softmax (JAX);
- a softmax whose rows without a seen key are zero (``_safe_softmax`` of PyTorch) is a softmax:
  ``R.dist.attention`` gives zero for these rows, too, where ``causal`` or a window hides all keys
  (where a bias does, the result is the mean of the values, as JAX computes);
- ``matmul(v^T, w^T)`` with the weights ``w`` is ``matmul(w, v)^T`` (``einsum`` of JAX);
- products over groups of heads have five dims (:mod:`.grouped_heads`);
- ``where(a and b, x, low)`` is ``where(a, where(b, x, low), low)``: each mask is read alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var, op

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import (
    BlockWriter,
    let_out,
    op_name,
    permutation,
    rebound,
    substitute,
    with_body,
)
from tvm_distir.core.rewriting.native import pruned

from .grouped_heads import GroupedHeads
from .masks import LOW, is_scalar

_VIEWS = ("reshape", "expand_dims", "broadcast_to", "squeeze", "permute_dims")
_ROW_TESTS = ("logical_not", "astype", "max", "any", *_VIEWS)


def in_normal_form(fn: relax.Function) -> relax.Function:
    """Return a function with attention in the form that is matched, or the function as it is."""
    return _Normalizer(fn).run()


class _Normalizer:
    """Rewriter of a function."""

    def __init__(self, fn: relax.Function) -> None:
        self._fn = fn
        self._values: dict[Var, Expr] = {}
        self._alias: dict[Var, Expr] = {}
        self._writer: Any = None
        self._changes = 0
        self._rules: dict[str, Callable[[Any, str], Any]] = {
            "reshape": self._batched,
            "divide": self._softmax,
            "matmul": self._turned,
            "where": self._by_single_masks,
        }
        self._groups = GroupedHeads(self._value, self._emit)

    def run(self) -> relax.Function:
        """Return the function."""
        blocks = BlockWriter.rewritten(relax.BlockBuilder(), self._fn.body.blocks, self._bind)
        if not self._changes:
            return self._fn
        blocks_out, result = let_out(blocks, substitute(self._fn.body.body, self._alias))
        blocks_out, _ = pruned(blocks_out, result)
        return with_body(self._fn, self._fn.params, blocks_out, result, bool(self._fn.is_pure))

    def _bind(self, writer: BlockWriter, binding: Binding) -> None:
        self._writer = writer
        if isinstance(binding, relax.MatchCast):
            self._writer.bindings.append(binding)
            return
        var, value = binding.var, substitute(binding.value, self._alias)
        if self._same(value) is None:
            value = self._rewritten(value, str(var.name))
        same = self._same(value)
        if same is not None:
            self._alias[var] = same
            self._changes += 1
        self._values[var] = value
        self._writer.bindings.append(rebound(binding, value))

    def _rewritten(self, value: Expr, name: str) -> Expr:
        """Return what the rewrites make of a value."""
        for rewrite in (self._rules.get(op_name(value)), self._groups.rewritten):
            new = None if rewrite is None else rewrite(value, name)
            if new is not None:
                self._changes += 1
                value = self._writer.builder.normalize(new)
        return value

    def _emit(self, value: Any, name: str) -> Any:
        var = self._writer.emit(value, name)
        self._values[var] = value
        return var

    def _value(self, expr: Expr) -> Any:
        return self._values.get(expr) if isinstance(expr, ir.Var) else None

    def _constant(self, expr: Expr) -> Any:
        """Return the value of a variable, and what is no variable as it is."""
        return self._value(expr) if isinstance(expr, ir.Var) else expr

    def _behind(self, expr: Expr, names: tuple[str, ...]) -> Any:
        """Return the first value behind an expression that is no call of these ops."""
        value = self._value(expr)
        while op_name(value) in names:
            value = self._value(value.args[0])
        return value

    def _same(self, value: Expr) -> Any:
        """Return the operand that a value equals, where attention reads it."""
        name = op_name(value)
        if name == "permute_dims" and permutation(value) == [*range(len(value.ty.shape))]:
            return value.args[0]
        if name in ("reshape", "broadcast_to"):
            shape = known_shape(value.ty)
            if shape is not None and known_shape(value.args[0].ty) == shape:
                return value.args[0]
        if name == "where" and op_name(self._value(value.args[2])) == "nn.softmax":
            return self._safe(value)
        return None

    def _safe(self, call: Any) -> Any:
        """Return the softmax of a safe softmax: zero where all operands of a row are low."""
        test, zero, weights = call.args
        compared = self._behind(test, _ROW_TESTS)
        scores = self._value(weights).args[0]
        if op_name(compared) != "equal" or not compared.args[0].same_as(scores):
            return None
        filled = self._constant(zero)
        while op_name(filled) in ("full", *_VIEWS):
            filled = self._constant(filled.args[1 if op_name(filled) == "full" else 0])
        return weights if is_scalar(filled, lambda x: x == 0) else None

    def _batched(self, call: Any, name: str) -> Any:
        """Return the product of batches of two dims that a reshape makes of one of joined dims."""
        product = self._value(call.args[0])
        shape = known_shape(call.ty)
        if op_name(product) != "matmul" or shape is None or len(shape) != 4:
            return None
        sides = []
        for side in product.args:
            view = self._value(side)
            if op_name(view) != "reshape":
                return None
            wide, flat = known_shape(view.args[0].ty), known_shape(view.ty)
            if wide is None or flat is None or len(wide) != 4 or len(flat) != 3:
                return None
            if wide[:2] != shape[:2] or wide[2:] != flat[1:]:
                return None
            sides.append(view.args[0])
        rows, columns = (known_shape(side.ty) for side in sides)
        if rows is None or columns is None or shape[2:] != (rows[2], columns[3]):
            return None
        return op.matmul(*sides)

    def _softmax(self, call: Any, name: str) -> Any:
        """Return the softmax that a quotient of exponentials and their sum is."""
        top, below = call.args
        power, total = self._value(top), self._behind(below, _VIEWS)
        shape, sums = known_shape(top.ty), known_shape(below.ty)
        if op_name(power) != "exp" or op_name(total) != "sum" or shape is None or sums is None:
            return None
        axes = total.attrs.axis
        last = axes is not None and [int(a) % len(shape) for a in axes] == [len(shape) - 1]
        if not last or not total.args[0].same_as(top) or sums != (*shape[:-1], 1):
            return None
        shifted = self._value(power.args[0])
        if op_name(shifted) != "subtract" or known_shape(shifted.args[1].ty) != sums:
            return None
        return op.nn.softmax(shifted.args[0], axis=-1)

    def _turned(self, call: ir.Call, name: str) -> Any:
        """Return a product of transposed values and weights as that of weights and values."""
        view = self._value(call.args[1])
        if op_name(view) != "permute_dims":
            return None
        weights, rank = view.args[0], len(view.ty.shape)
        swap = [*range(rank - 2), rank - 1, rank - 2]
        if permutation(view) != swap or op_name(self._value(weights)) != "nn.softmax":
            return None
        values = self._emit(op.permute_dims(call.args[0], swap), name)
        return op.permute_dims(self._emit(op.matmul(weights, values), name), swap)

    def _by_single_masks(self, call: ir.Call, name: str) -> Any:
        """Return a choice by two masks that both must hold as two choices."""
        mask, scores, low = call.args
        both, full = self._value(mask), known_shape(call.ty)
        if op_name(both) not in ("logical_and", "bitwise_and") or full is None:
            return None
        if known_shape(scores.ty) != full or not is_scalar(low, lambda x: x <= LOW):
            return None
        inner = self._writer.builder.normalize(op.where(both.args[1], scores, low))
        return op.where(both.args[0], self._emit(self._rewritten(inner, name), name), low)
