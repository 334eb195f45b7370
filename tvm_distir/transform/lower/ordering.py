# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops along a cut axis whose elements have an order: running sums and the k best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...ir import ops
from .calls import LocalCall, register_local
from .halo import fetched
from .padding import neutral_element
from .statistics import filled


@register_local("relax.cumsum", "relax.cumprod")
def scan(cx: LocalCall) -> Any:
    """The own scan, on top of what all ranks before have: their totals are scanned by doubling."""
    own, a = cx.ins[0].shard, cx.call.attrs
    if a.axis is None:
        return cx.same()
    axis = int(a.axis) % len(own.whole)
    axes = cx.axes_of_dim(0, axis)
    if not axes:
        return cx.same()
    summed = str(cx.call.op.name) == "relax.cumsum"
    join = relax.op.add if summed else relax.op.multiply
    dtype = cx.outs[0].dtype
    mine = cx.emit(cx.same(), "own")
    x = filled(cx, cx.operand(0), [axis], 0 if summed else 1, own.dtype)
    if own.dtype != dtype:
        x = cx.emit(relax.op.astype(x, dtype), "wide")
    fold = relax.op.sum if summed else relax.op.prod
    total = cx.emit(fold(x, [axis], keepdims=True), "total")
    before = _from_before(cx, total, axes, 1, summed, dtype)
    hop = 1
    while hop < own.counts[axis] - 1:
        further = _from_before(cx, before, axes, hop, summed, dtype)
        before = cx.emit(join(before, further), "before")
        hop *= 2
    return join(mine, before)


def _from_before(
    cx: LocalCall, x: Any, axes: Sequence[int], hop: int, summed: bool, dtype: str
) -> Any:
    """``x`` of the rank ``hop`` places before me; the neutral element where there is none."""
    found = fetched(cx, x, axes, hop)
    if summed:
        return found  # zeros arrive where there is no rank
    there = relax.op.greater_equal(cx.position(axes), relax.const(hop, "int64"))
    there = cx.emit(there, "there")
    return cx.emit(relax.op.where(there, found, cx.scalar(1, dtype)), "before")


@register_local("relax.topk")
def topk(cx: LocalCall) -> Any:
    """The best of each device gathered, and the best of these taken.

    Of equal values the first counts, on one device as over several: the order of the devices is
    that of the elements, and padding comes last: none may lie between them.
    """
    own, a = cx.ins[0].shard, cx.call.attrs
    axis = int(a.axis) % len(own.whole)
    axes = cx.axes_of_dim(0, axis)
    if not axes:
        return cx.same()
    cx.check_order(own, axis)
    count, largest, dtype = int(a.k), bool(a.largest), str(a.dtype)
    worst = neutral_element("max" if largest else "min", own.dtype)
    x = filled(cx, cx.operand(0), [axis], worst, own.dtype)
    some = min(count, own.local[axis])
    best = cx.emit(relax.op.topk(x, some, axis, "both", largest, dtype), "best")
    values, places = (cx.emit(relax.TupleGetItem(best, i), "best") for i in (0, 1))
    start = cx.emit(relax.op.astype(cx.start(0, axis), dtype), "start")
    places = cx.emit(relax.op.add(places, start), "places")
    for mesh_axis in reversed(axes):
        values, places = (
            cx.emit(ops.all_gather(v, cx.mesh, mesh_axis, axis), "best") for v in (values, places)
        )
    kind = str(a.ret_type)
    if kind == "values":
        return relax.op.topk(values, count, axis, "values", largest, dtype)
    merged = cx.emit(relax.op.topk(values, count, axis, "both", largest, "int64"), "merged")
    chosen = cx.emit(relax.TupleGetItem(merged, 1), "chosen")
    indices = cx.emit(relax.op.gather_elements(places, chosen, axis=axis), "indices")
    if kind == "indices":
        return indices
    return relax.Tuple([cx.emit(relax.TupleGetItem(merged, 0), "values"), indices])
