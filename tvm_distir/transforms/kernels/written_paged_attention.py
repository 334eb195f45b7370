# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write out the ops on paged caches as look-ups, products, exponentials and sums of Relax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, op

from tvm_distir.core.ir.operators import (
    EXPERT_MATMUL_OP,
    KV_APPEND_OP,
    PAGED_ATTENTION_OP,
    UNSEEN,
    PagedAttentionOptions,
    accumulated,
    start_operand,
)
from tvm_distir.core.rewriting import scalar

from .written_attention import WRITTEN_ATTENTION


def _const(value: Any) -> Expr:
    """Return a constant of int64, a number or an array."""
    return relax.const(value, "int64")


_LEAST = -80.0
"""The least exponent: CPUs take several times as long for subnormal numbers."""


class _Pages:
    """Writer of what both ops compute of pages and lengths."""

    def __init__(self, builder: BlockBuilder, call: ir.Call, cache: Expr) -> None:
        self.builder, self.emit, self.start = builder, builder.emit, start_operand(call)
        self.pools, self.count, self.rows, *_ = (int(n) for n in cache.ty.shape)
        count = len(call.args) - (self.start is not None)
        self.pages, self.lengths = (self.wide(call.args[count - 2 + i]) for i in range(2))
        self.batch, self.columns = (int(n) for n in self.pages.ty.shape)
        self.page_size = int(call.attrs["page_size"])

    def wide(self, value: Expr) -> Expr:
        """Cast integers to int64."""
        return value if str(value.ty.dtype) == "int64" else self.emit(op.astype(value, "int64"))

    def queries(self, count: int) -> Expr:
        """Return the positions of the new rows, ``(B, S)``."""
        lengths = self.emit(op.reshape(self.lengths, (self.batch, 1)))
        new = _const(np.arange(count)[None, :])
        return self.emit(op.add(lengths, new))

    def pools_of_requests(self) -> Expr:
        """Return the number of the pool of each request, ``(B, 1)``."""
        pools = np.arange(self.batch) // (self.batch // self.pools)
        return _const(pools[:, None])


def append_operands(builder: BlockBuilder, call: ir.Call) -> tuple[Expr, Expr]:
    """Write the places of the rows of an append, ``(B, S, 3)``, and the rows in the cache's type.

    A place is the pool, the page in it and the position in the page. The pool of a row that the
    device does not store is one that does not exist.
    """
    cache, new = call.args[:2]
    w = _Pages(builder, call, cache)
    _, count, heads, width = (int(n) for n in new.ty.shape)
    positions = w.queries(count)
    column = w.emit(op.floor_divide(positions, _const(w.page_size)))
    row = w.emit(op.subtract(positions, w.emit(op.multiply(column, _const(w.page_size)))))
    page = w.emit(op.gather_elements(w.pages, column, axis=1))
    pool = w.emit(op.broadcast_to(w.pools_of_requests(), (w.batch, count)))
    if w.start is not None:
        row = w.emit(op.subtract(row, w.start))
        stored = op.logical_and(
            w.emit(op.greater_equal(row, _const(0))), w.emit(op.less(row, _const(w.rows)))
        )
        # A pool that does not exist: what is outside of the cache is not written.
        pool = w.emit(op.where(w.emit(stored), pool, _const(w.pools)))
        row = w.emit(op.maximum(row, _const(0)))
    index = w.emit(op.stack([pool, page, row], axis=2))
    dtype = str(cache.ty.dtype)
    rows = new if str(new.ty.dtype) == dtype else w.emit(op.astype(new, dtype))
    return index, w.emit(op.reshape(rows, (w.batch, count, heads, width)))


def written_append(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Write out an append: the rows are scattered to their places in a copy of the cache."""
    index, rows = append_operands(builder, call)
    return op.scatter_nd(call.args[0], index, rows, "update")


class _Attention(_Pages):
    """Writer of attention to pages."""

    def __init__(self, builder: BlockBuilder, call: ir.Call) -> None:
        super().__init__(builder, call, call.args[1])
        self.options = PagedAttentionOptions.of(call.attrs)
        self.q, self.k, self.v = call.args[:3]
        _, self.new, self.heads, self.group, _ = (int(n) for n in self.q.ty.shape)
        self.dtype = accumulated(str(self.q.ty.dtype))

    def typed(self, value: Expr, dtype: str) -> Expr:
        """Cast a value to a type."""
        return value if str(value.ty.dtype) == dtype else self.emit(op.astype(value, dtype))

    def const(self, value: float) -> Expr:
        """Return a constant of the type of the scores."""
        return scalar(value, self.dtype)

    def read(self, cache: Expr, order: Sequence[int]) -> Expr:
        """Return the positions of all requests, ``(B, T, K, D)``, with dims in another order."""
        width = int(cache.ty.shape[4])
        first = self.emit(op.multiply(self.pools_of_requests(), _const(self.count)))
        pages = self.emit(op.add(self.pages, first))
        flat = self.emit(op.reshape(pages, (self.batch * self.columns,)))
        shape = (self.pools * self.count, self.rows, self.heads, width)
        rows = self.emit(op.take(self.emit(op.reshape(cache, shape)), flat, axis=0))
        shape = (self.batch, self.columns * self.rows, self.heads, width)
        rows = self.emit(op.reshape(rows, shape))
        return self.typed(self.emit(op.permute_dims(rows, order)), self.dtype)

    def seen(self) -> Expr:
        """Return which positions a query sees, ``(B, 1, S, 1, T)``."""
        numbers = np.arange(self.columns)[:, None] * self.page_size + np.arange(self.rows)[None, :]
        positions: Expr = _const(numbers.reshape(1, 1, 1, 1, -1))
        if self.start is not None:
            positions = self.emit(op.add(positions, self.start))
        queries = self.emit(op.reshape(self.queries(self.new), (self.batch, 1, self.new, 1, 1)))
        seen = self.emit(op.less_equal(positions, queries))
        if not self.options.window:
            return seen
        first = self.emit(op.subtract(queries, _const(self.options.window)))
        return self.emit(op.logical_and(seen, self.emit(op.greater(positions, first))))

    def written(self) -> Expr:
        """Return the results, ``(B, S, K, G, E)`` and ``(B, S, K, G)``.

        What a query does not see is left out of its scores and of its weights: pages of a cache
        that no request has written hold any numbers.
        """
        keys, total = self.read(self.k, [0, 2, 3, 1]), self.columns * self.rows
        values = self.read(self.v, [0, 2, 1, 3])
        if self.options.value_width:
            values = self.emit(op.strided_slice(values, [3], [0], [self.options.value_width]))
        rows, width = self.new * self.group, int(self.q.ty.shape[4])
        q = self.emit(op.permute_dims(self.typed(self.q, self.dtype), [0, 2, 1, 3, 4]))
        q = self.emit(op.reshape(q, (self.batch, self.heads, rows, width)))
        scores = self.emit(op.matmul(q, keys))
        scores = self.emit(op.multiply(scores, self.const(self.options.scale)))
        if self.options.score_cap:
            cap = self.const(self.options.score_cap)
            bounded = self.emit(op.tanh(self.emit(op.divide(scores, cap))))
            scores = self.emit(op.multiply(bounded, cap))
        by_query = (self.batch, self.heads, self.new, self.group, total)
        scores, seen = self.emit(op.reshape(scores, by_query)), self.seen()
        scores = self.emit(op.where(seen, scores, self.const(UNSEEN)))
        top = self.emit(op.max(scores, [4], keepdims=True))
        below = self.emit(op.subtract(scores, top))
        raised = self.emit(op.exp(self.emit(op.maximum(below, self.const(_LEAST)))))
        raised = self.emit(op.where(seen, raised, self.const(0.0)))
        sums = self.emit(op.sum(raised, [4], keepdims=True))
        sums = self.emit(op.maximum(sums, self.const(1e-37)))
        weights = self.emit(op.divide(raised, sums))
        weights = self.emit(op.reshape(weights, (self.batch, self.heads, rows, total)))
        mixed = self.emit(op.matmul(weights, values))
        shape = (self.batch, self.heads, self.new, self.group, int(values.ty.shape[3]))
        mixed = self.emit(op.reshape(mixed, shape))
        mixed = self.emit(op.permute_dims(mixed, [0, 2, 1, 3, 4]))
        mixed = self.typed(mixed, str(self.q.ty.dtype))
        lse = self.emit(op.add(top, self.emit(op.log(sums))))
        lse = self.emit(op.reshape(lse, shape[:4]))
        return relax.Tuple([mixed, self.emit(op.permute_dims(lse, [0, 2, 1, 3]))])


WRITTEN_OPS: dict[str, Callable[[BlockBuilder, ir.Call], Expr]] = {
    **WRITTEN_ATTENTION,
    KV_APPEND_OP: written_append,
    PAGED_ATTENTION_OP: lambda builder, call: _Attention(builder, call).written(),
    EXPERT_MATMUL_OP: lambda _, call: op.matmul(*call.args),
}
"""Writers of calls of attention, caches and experts, by the names of the ops."""
