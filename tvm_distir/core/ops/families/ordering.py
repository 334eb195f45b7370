# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of ops with an ordered axis: scans, sorts and the k best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.halo import fetched
from tvm_distir.core.ops.local.masking import neutral_element
from tvm_distir.core.ops.local.statistics import fill_padding
from tvm_distir.core.ops.registration import SAME_OP, Family
from tvm_distir.core.ops.statistic import statistic_bytes

FAMILY: Family = Family()


def _other_dims(call: CallShape, axis: int) -> Draft:
    return Draft(call).tie_each(len(call.ins[0]), outs=range(len(call.outs)), without=axis)


def scan_on_shards(cx: LocalCall) -> ir.Call:
    """Scan locally, then add the totals of all previous ranks, which are scanned by doubling."""
    shard, a = cx.ins[0].shard, cx.call.attrs
    if a.axis is None:
        return cx.same()
    axis = int(a.axis) % len(shard.global_shape)
    axes = cx.axes_of_dim(0, axis)
    if not axes:
        return cx.same()
    summed = str(cx.call.op.name) == "relax.cumsum"
    join = relax.op.add if summed else relax.op.multiply
    dtype = cx.outs[0].dtype
    mine = cx.emit(cx.same(), "own")
    x = fill_padding(cx, cx.operand(0), [axis], 0 if summed else 1, shard.dtype)
    if shard.dtype != dtype:
        x = cx.emit(relax.op.astype(x, dtype), "wide")
    fold = relax.op.sum if summed else relax.op.prod
    total = cx.emit(fold(x, [axis], keepdims=True), "total")
    before = _from_before(cx, total, axes, 1, summed, dtype)
    hop = 1
    while hop < shard.counts[axis] - 1:
        further = _from_before(cx, before, axes, hop, summed, dtype)
        before = cx.emit(join(before, further), "before")
        hop *= 2
    return join(mine, before)


def _from_before(
    cx: LocalCall, x: ir.Expr, axes: Sequence[int], hop: int, summed: bool, dtype: str
) -> ir.Expr:
    """Fetch ``x`` of the rank ``hop`` places before; the neutral element where there is none."""
    total = fetched(cx, x, axes, hop)
    if summed:
        return total  # zeros arrive where there is no rank
    in_range = relax.op.greater_equal(cx.position(axes), relax.const(hop, "int64"))
    in_range = cx.emit(in_range, "there")
    return cx.emit(relax.op.where(in_range, total, cx.scalar(1, dtype)), "before")


@FAMILY.rule("relax.cumsum", "relax.cumprod", local=scan_on_shards)
def scan(call: CallShape) -> Draft:
    """Shard all dims; along the axis the totals of the parts are scanned over the devices.

    A running sum is linear.
    """
    axes = call.integers("axis")
    if axes is None:
        draft = Draft(call)
        draft.default_why = "the operand is flattened and scanned"
    else:
        shape = call.ins[0]
        axis = axes[0] % len(shape)
        draft = _other_dims(call, axis)
        rows = statistic_bytes(shape, (axis,), call.out_dtypes[0])
        draft.tie({0: axis}, {0: axis}, "stat", comm_bytes=rows)
    if call.op == "relax.cumsum" and call.in_dtypes == call.out_dtypes:
        draft.linear((0,))
    return draft.per_element()


@FAMILY.rule("relax.sort", "relax.argsort", local=SAME_OP)
def order(call: CallShape) -> Draft:
    """Shard dims other than the axis, which is replicated.

    Where an element goes depends on all others: a sort over devices moves every element about as
    often as a gather does. Only the first few can be merged (topk).
    """
    axis = int(call.attrs.axis) % len(call.ins[0])
    draft = _other_dims(call, axis)
    draft.default_why = "it is sorted: the position of an element depends on all others"
    return _compared(draft, axis)


def topk_on_shards(cx: LocalCall) -> ir.Expr:
    """Gather the best elements of each device and select the best of these.

    Of equal values the first counts, on a single device as over several: the order of the devices
    is that of the elements, and padding comes last, so that none may be between them.
    """
    shard, a = cx.ins[0].shard, cx.call.attrs
    axis = int(a.axis) % len(shard.global_shape)
    axes = cx.axes_of_dim(0, axis)
    if not axes:
        return cx.same()
    cx.check_order(shard, axis)
    count, largest, dtype = int(a.k), bool(a.largest), str(a.dtype)
    worst = neutral_element("max" if largest else "min", shard.dtype)
    if not largest and "float" in shard.dtype:
        worst = np.array(np.nan, worst.dtype)  # greater than all numbers
    x = fill_padding(cx, cx.operand(0), [axis], worst, shard.dtype)
    some = min(count, shard.local[axis])
    best = cx.emit(relax.op.topk(x, some, axis, "both", largest, dtype), "best")
    values, positions = (cx.emit(relax.TupleGetItem(best, i), "best") for i in (0, 1))
    start = cx.emit(relax.op.astype(cx.start(0, axis), dtype), "start")
    positions = cx.emit(relax.op.add(positions, start), "places")
    for mesh_axis in reversed(axes):
        values, positions = (
            cx.emit(ops.all_gather(v, cx.mesh, mesh_axis, axis), "best")
            for v in (values, positions)
        )
    kind = str(a.ret_type)
    if kind == "values":
        return relax.op.topk(values, count, axis, "values", largest, dtype)
    merged = cx.emit(relax.op.topk(values, count, axis, "both", largest, "int64"), "merged")
    chosen = cx.emit(relax.TupleGetItem(merged, 1), "chosen")
    indices = cx.emit(relax.op.gather_elements(positions, chosen, axis=axis), "indices")
    if kind == "indices":
        return indices
    return relax.Tuple([cx.emit(relax.TupleGetItem(merged, 0), "values"), indices])


@FAMILY.rule("relax.topk", local=topk_on_shards)
def topk(call: CallShape) -> Draft:
    """Shard dims other than the axis; along the axis the best of the parts are merged.

    The result is replicated along the axis.
    """
    shape, count = call.ins[0], int(call.attrs.k)
    axis = int(call.attrs.axis) % len(shape)
    draft = _other_dims(call, axis)
    extent = shape[axis]
    if 0 < count and not (isinstance(extent, int) and count >= extent):
        best = tuple(count if d == axis else n for d, n in enumerate(shape))
        comm_bytes = statistic_bytes(best, (), call.in_dtypes[0]) + statistic_bytes(best, ())
        draft.tie({0: axis}, {}, "stat", comm_bytes=comm_bytes, adjacent=True)
    draft.default_why = "all its elements are sorted"
    return _compared(draft, axis)


def _compared(draft: Draft, axis: int) -> Draft:
    extent = draft.call.ins[0][axis]
    return draft.per_element(max(1, extent.bit_length() if isinstance(extent, int) else 10))
