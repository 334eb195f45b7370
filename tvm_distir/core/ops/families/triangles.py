# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of matrix triangles, which select elements by global row and column."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.registration import Family

FAMILY: Family = Family()


def _numbers(cx: LocalCall, dim: int) -> ir.Expr:
    """Return the global positions of the local rows (columns), broadcastable; int64."""
    shard = cx.ins[0].shard
    positions = cx.emit(relax.op.arange(0, shard.local[dim], 1, "int64"), "places")
    if cx.axes_of_dim(0, dim):
        positions = cx.emit(relax.op.add(positions, cx.start(0, dim)), "places")
    shape = [shard.local[d] if d == dim else 1 for d in range(len(shard.local))]
    return cx.emit(relax.op.reshape(positions, shape), "places")


def triangle_on_shards(cx: LocalCall) -> ir.Call:
    """Keep elements of sharded rows or columns by their global position; the rest are zeros."""
    shard = cx.ins[0].shard
    rows, columns = len(shard.global_shape) - 2, len(shard.global_shape) - 1
    if not cx.axes_of_dim(0, rows) and not cx.axes_of_dim(0, columns):
        return cx.same()
    ahead = cx.emit(relax.op.subtract(_numbers(cx, columns), _numbers(cx, rows)), "ahead")
    bound = relax.const(int(cx.argument_int(1)), "int64")
    lower = str(cx.call.op.name) == "relax.tril"
    inside = relax.op.less_equal(ahead, bound) if lower else relax.op.greater_equal(ahead, bound)
    return relax.op.where(cx.emit(inside, "kept"), cx.operand(0), cx.scalar(0, shard.dtype))


@FAMILY.rule("relax.tril", "relax.triu", local=triangle_on_shards)
def triangle(call: CallShape) -> Draft:
    """Shard all dims; rows and columns where the diagonal is a known number."""
    draft = Draft(call, why="the diagonal is not a constant")
    ndim = len(call.ins[0])
    draft.tie_each(ndim if isinstance(call.args[1], int) else ndim - 2)
    return draft.linear((0,)).per_element()
