# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write out the ops on paged caches as look-ups, products, exponentials and sums of Relax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, op

from tvm_distir.core.ir.operators import (
    ATTENTION_OP,
    EXPERT_MATMUL_OP,
    KV_APPEND_OP,
    PAGED_ATTENTION_OP,
    UNSEEN,
    PagedAttentionOptions,
    accumulated,
    attention,
    start_operand,
)
from tvm_distir.core.rewriting import scalar

from .written_attention import WRITTEN_ATTENTION


def _const(value: Any) -> Expr:
    """Return a constant of int64, a number or an array."""
    return relax.const(value, "int64")


class _Pages:
    """Writer of what both ops compute of pages and lengths."""

    def __init__(self, builder: BlockBuilder, call: ir.Call, cache: Expr) -> None:
        self.builder, self.start = builder, start_operand(call)
        self.pools, self.count, self.rows, *_ = (int(n) for n in cache.ty.shape)
        count = len(call.args) - (self.start is not None)
        self.pages, self.lengths = (self.wide(call.args[count - 2 + i]) for i in range(2))
        self.batch, self.columns = (int(n) for n in self.pages.ty.shape)
        self.page_size = int(call.attrs["page_size"])

    def emit(self, value: Expr) -> Expr:
        """Bind a value."""
        return self.builder.emit(value)

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
    columns = w.queries(count)
    column = w.emit(op.floor_divide(columns, _const(w.page_size)))
    row = w.emit(op.subtract(columns, w.emit(op.multiply(column, _const(w.page_size)))))
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
    """Writer of attention to pages, as attention to the keys of all pages with a bias."""

    def __init__(self, builder: BlockBuilder, call: ir.Call) -> None:
        super().__init__(builder, call, call.args[1])
        self.options = PagedAttentionOptions.of(call.attrs)
        self.q, self.k, self.v = call.args[:3]
        self.dtype = accumulated(str(self.q.ty.dtype))

    def typed(self, value: Expr, dtype: str) -> Expr:
        """Cast a value to a type."""
        return value if str(value.ty.dtype) == dtype else self.emit(op.astype(value, dtype))

    def read(self, cache: Expr) -> Expr:
        """Return the positions of all requests, ``(B, T, K, D)``."""
        *_, heads, width = (int(n) for n in cache.ty.shape)
        first = self.emit(op.multiply(self.pools_of_requests(), _const(self.count)))
        columns = self.emit(op.add(self.pages, first))
        flat = self.emit(op.reshape(columns, (self.batch * self.columns,)))
        shape = (self.pools * self.count, self.rows, heads, width)
        rows = self.emit(op.take(self.emit(op.reshape(cache, shape)), flat, axis=0))
        rows = self.emit(op.reshape(rows, (self.batch, self.columns * self.rows, heads, width)))
        return self.typed(rows, self.dtype)

    def bias(self, count: int) -> Expr:
        """Return zero where a query sees a position, ``(B, 1, S, T)``."""
        columns = np.arange(self.columns)[:, None] * self.page_size + np.arange(self.rows)[None, :]
        positions: Expr = _const(columns.reshape(1, 1, 1, -1))
        if self.start is not None:
            positions = self.emit(op.add(positions, self.start))
        queries = self.emit(op.reshape(self.queries(count), (self.batch, 1, count, 1)))
        seen = self.emit(op.less_equal(positions, queries))
        if self.options.window:
            first = self.emit(op.subtract(queries, _const(self.options.window)))
            seen = self.emit(op.logical_and(seen, self.emit(op.greater(positions, first))))
        return self.emit(op.where(seen, *(scalar(x, self.dtype) for x in (0.0, UNSEEN))))

    def written(self) -> Expr:
        """Return the results, ``(B, S, K, G, E)`` and ``(B, S, K, G)``."""
        batch, count, heads, group, width = (int(n) for n in self.q.ty.shape)
        q = self.emit(op.reshape(self.q, (batch, count, heads * group, width)))
        keys, values = self.read(self.k), self.read(self.v)
        if self.options.value_width:
            values = self.emit(op.strided_slice(values, [3], [0], [self.options.value_width]))
        operands = self.typed(q, self.dtype), keys, values, self.bias(count)
        call = attention(*operands, scale=self.options.scale, cap=self.options.score_cap)
        call = self.builder.normalize(call)
        mixed, lse = WRITTEN_ATTENTION[ATTENTION_OP](self.builder, call).fields
        mixed = self.typed(mixed, str(self.q.ty.dtype))
        mixed = self.emit(op.reshape(mixed, (batch, count, heads, group, values.ty.shape[3])))
        lse = self.emit(op.permute_dims(lse, [0, 2, 1]))
        return relax.Tuple([mixed, self.emit(op.reshape(lse, (batch, count, heads, group)))])


def _attention(builder: BlockBuilder, call: ir.Call) -> Expr:
    return _Attention(builder, call).written()


WRITTEN_OPS: dict[str, Callable[[BlockBuilder, ir.Call], Expr]] = {
    **WRITTEN_ATTENTION,
    KV_APPEND_OP: written_append,
    PAGED_ATTENTION_OP: _attention,
    EXPERT_MATMUL_OP: lambda _, call: op.matmul(*call.args),
}
"""Writers of calls of attention, caches and experts, by the names of the ops."""
