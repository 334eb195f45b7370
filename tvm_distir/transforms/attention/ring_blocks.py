# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute ``R.dist.attention`` and its gradients around a ring, with a kernel per key block.

Results of blocks are weighed by their log-sum-exps, below a running maximum and in float32 at
least (Liu et al. 2023, "Ring Attention"; Milakov and Gimelshein 2018, "Online normalizer
calculation for softmax"). The gradients of a block need nothing of other blocks but the log-sum-exp
of all keys (Dao et al. 2022, "FlashAttention", section 3), so they are those of the op on the
block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax import Expr, Var, op

from tvm_distir.core.ir import known_shape
from tvm_distir.core.ir.operators import (
    UNSEEN,
    AttentionOptions,
    accumulated,
    attention,
    attention_backward,
    attention_bias_gradient,
    attention_operands,
    attention_sinks,
    ops,
)
from tvm_distir.core.rewriting import scalar
from tvm_distir.support import memoized

from .ring_gathers import GatheredTensor

HIDDEN, PADDING = UNSEEN / 10, UNSEEN * 1e8
"""Least bias of a key, above the log-sum-exp of a block that a query sees no key of; bias of rows
that are no keys."""


class RingBlocks:
    """Writer of attention over key blocks that are handed on around a ring.

    Parameters
    ----------
    emit : callable
        Binds a value to a new variable of a name.
    call : Call
        The op, over gathered keys and values.
    keys, values : GatheredTensor
        Cut along their positions into the same blocks.
    name : str
        The beginning of names of variables.
    """

    def __init__(
        self,
        emit: Callable[[Any, str], Any],
        call: ir.Call,
        keys: GatheredTensor,
        values: GatheredTensor,
        name: str,
    ) -> None:
        self._emit, self._name, self._keys = emit, name, keys
        self._blocks = [keys.block, values.block]
        self._options = AttentionOptions.of(call)
        self._tensors, self._bias, self._shift = attention_operands(call)
        self._sinks = attention_sinks(call)
        if keys.padded:
            self._blocks = [self._keys_only(block) for block in self._blocks]

    def forward(self) -> list[Var]:
        """Write the result, in the type of the queries, and the log-sum-exp."""
        q = self._tensors[0]
        call = attention(q, *self._blocks, *self._masks(0), **vars(self._options))
        result, top = self._fields(call, 2)
        self._hand_on(0)
        result, total = self._wide(result), None
        for step in range(1, self._keys.count):
            call = attention(q, *self._blocks, *self._masks(step), **vars(self._options))
            part, lse = self._fields(call, 2)
            self._hand_on(step)
            part, (top, old, new) = self._wide(part), self._below(top, lse)
            terms = [
                self._bind(op.multiply(x, self._column(y))) for x, y in ((result, old), (part, new))
            ]
            result, total = self._bind(op.add(*terms)), self._total(total, old, new)
        if self._sinks is not None:
            scores = self._bind(op.astype(self._sinks, str(top.ty.dtype)))
            scores = self._bind(op.reshape(scores, (1, top.ty.shape[1], 1)))
            top, old, new = self._below(top, scores)
            result = self._bind(op.multiply(result, self._column(old)))
            total = self._total(total, old, new)
        if total is None:
            return [self._typed(result, q), top]
        result = self._bind(op.divide(result, self._column(total)))
        return [self._typed(result, q), self._bind(op.add(top, self._bind(op.log(total))))]

    def backward(self, travels: bool) -> list[Any]:
        """Write the gradients of queries, keys and values.

        Gradients that travel follow their block, from the second device that it reaches on, and
        are added to those of its owner at the end: ``n - 1`` messages of each give those of the
        device's own keys and values. Otherwise they are this device's terms for all of them.
        """
        q, k, v, *rest = self._tensors
        by_query: Any = None
        terms: list[list[Var]] = []
        moving: list[Var] = []
        for step in range(self._keys.count):
            operands = (q, *self._blocks, *rest, *self._masks(step))
            parts = self._fields(attention_backward(*operands, **vars(self._options)), 3)
            self._hand_on(step)
            query, *by_block = map(self._wide, parts)
            by_query = query if by_query is None else self._bind(op.add(by_query, query))
            if travels and step:
                by_block = self._sums(moving, by_block) if moving else by_block
                moving = [self._handed_on(x) for x in by_block]
            else:
                terms.append(by_block)
        if travels:
            by_keys = self._sums(terms[0], moving) if moving else terms[0]
        else:
            by_keys = [self._in_order(of_blocks, 1) for of_blocks in zip(*terms, strict=True)]
        gradients = (by_query, *by_keys)
        return [self._typed(x, like) for x, like in zip(gradients, (q, k, v), strict=True)]

    def bias_gradient(self) -> Any:
        """Write the gradient of the bias, of the columns of all keys."""
        parts = []
        for step in range(self._keys.count):
            operands = (self._tensors[0], *self._blocks, *self._tensors[3:], *self._masks(step))
            part = self._bind(attention_bias_gradient(*operands, **vars(self._options)))
            self._hand_on(step)
            parts.append(self._wide(part))
        if not self._is_same_for_keys():
            return self._typed(self._in_order(parts, 3), self._bias)
        total = parts[0]
        for part in parts[1:]:
            total = self._bind(op.add(total, part))
        if self._keys.padded:  # the bias of a block has a column per key
            total = self._bind(op.sum(total, [3], keepdims=True))
        return self._typed(total, self._bias)

    def _below(self, top: Var, lse: Var) -> tuple[Var, Var, Var]:
        """Return the maximum of two log-sum-exps, and their exponentials below it."""
        highest = self._bind(op.maximum(top, lse))
        old, new = (self._bind(op.exp(self._bind(op.subtract(x, highest)))) for x in (top, lse))
        return highest, old, new

    def _total(self, total: Any, old: Var, new: Var) -> Var:
        """Return the sum of exponentials below a new maximum; None is 1."""
        old = old if total is None else self._bind(op.multiply(total, old))
        return self._bind(op.add(old, new))

    def _column(self, weights: Var) -> Var:
        """Return weights ``(B, H, S)`` of results ``(B, S, H, E)``."""
        turned = self._bind(op.permute_dims(weights, [0, 2, 1]))
        return self._bind(op.reshape(turned, (*turned.ty.shape, 1)))

    def _sums(self, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        return [self._bind(op.add(*pair)) for pair in zip(first, second, strict=True)]

    def _masks(self, step: int) -> list[Any]:
        """Return the bias of the block at hand, and where the queries are among its keys."""
        masks, bias, keys = [], self._bias, self._keys
        dtype = accumulated(str((self._tensors[0] if bias is None else bias).ty.dtype))
        if bias is not None:
            if not self._is_same_for_keys():
                bias = self._bind(op.take(bias, self._positions(step), axis=3, mode="clip"))
            bias = self._bind(op.maximum(self._wide(bias), scalar(HIDDEN, dtype)))
        if keys.padded:
            valid = self._bind(op.reshape(self._are_keys(step), (1, 1, 1, keys.rows)))
            shown = scalar(0.0, dtype) if bias is None else bias
            bias = self._bind(op.where(valid, shown, scalar(PADDING, dtype)))
        if bias is not None:
            masks.append(bias)
        if self._options.causal:
            shift = int64(0) if self._shift is None else self._shift
            masks.append(self._bind(op.subtract(shift, self._first_row(step))))
        return masks

    def _is_same_for_keys(self) -> bool:
        """Return whether the bias has a single column."""
        return (known_shape(self._bias.ty) or (0,))[-1] == 1

    def _keys_only(self, block: Var) -> Any:
        """Return a block of this device with zeros in the rows that pad it."""
        valid = self._bind(op.reshape(self._are_keys(0), (1, self._keys.rows, 1, 1)))
        return self._bind(op.where(valid, block, scalar(0.0, str(block.ty.dtype))))

    def _are_keys(self, step: int) -> Any:
        return self._bind(op.less(self._positions(step), int64(self._keys.extent)))

    def _positions(self, step: int) -> Any:
        """Return the positions of the keys at hand."""
        rows = self._bind(op.arange(0, self._keys.rows, 1, "int64"))
        return self._bind(op.add(rows, self._first_row(step)))

    @memoized
    def _first_row(self, step: int) -> Any:
        """Return the position of the first key at hand: those of rank ``me - step``."""
        owner, count = self._rank, self._keys.count
        if step:
            owner = self._bind(op.add(owner, int64(count - step)))
            owner = self._bind(op.floor_mod(owner, int64(count)))
        return self._bind(op.multiply(owner, int64(self._keys.rows)))

    @cached_property
    def _rank(self) -> Var:
        return self._bind(ops.axis_index(self._keys.mesh, self._keys.axis))

    def _in_order(self, of_blocks: Sequence[Any], dim: int) -> Any:
        """Return what was computed of all blocks with the keys in their order."""
        count, rows = self._keys.count, self._keys.rows
        owner = np.arange(self._keys.extent) // rows
        step = self._bind(op.subtract(self._rank, int64(owner - count)))
        step = self._bind(op.floor_mod(step, int64(count)))
        position = self._bind(op.multiply(step, int64(rows)))
        position = self._bind(op.add(position, int64(np.arange(self._keys.extent) % rows)))
        joined = self._bind(op.concat(list(of_blocks), axis=dim))
        return self._bind(op.take(joined, position, axis=dim, mode="clip"))

    def _fields(self, call: ir.Call, count: int) -> list[Var]:
        fields = self._bind(call)
        return [self._bind(relax.TupleGetItem(fields, i)) for i in range(count)]

    def _hand_on(self, step: int) -> None:
        """Receive the blocks of the preceding rank, but after the last step."""
        if step + 1 < self._keys.count:
            self._blocks = [self._handed_on(block) for block in self._blocks]

    def _handed_on(self, block: Var) -> Var:
        mesh, axis = self._keys.mesh, self._keys.axis
        return self._bind(ops.collective_permute(block, mesh, axis, 1, wrap=True))

    def _wide(self, value: Expr) -> Var:
        return self._cast(value, accumulated(str(value.ty.dtype)))

    def _typed(self, value: Expr, like: Expr) -> Var:
        return self._cast(value, str(like.ty.dtype))

    def _cast(self, value: Any, dtype: str) -> Any:
        return value if str(value.ty.dtype) == dtype else self._bind(op.astype(value, dtype))

    def _bind(self, value: Expr) -> Var:
        return self._emit(value, self._name)


def int64(value: Any) -> Any:
    """Return integers as a constant."""
    return relax.const(np.asarray(value, "int64"), "int64")
