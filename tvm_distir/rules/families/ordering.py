# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops that run along an axis: scans and sorts."""

from __future__ import annotations

from ..draft import CallShape, Draft
from ..registry import register_sharding_rule
from .norms import statistic_bytes


def _other_dims(call: CallShape, axis: int) -> Draft:
    draft = Draft(call)
    for d in range(len(call.ins[0])):
        if d != axis:
            draft.tie({0: d}, dict.fromkeys(range(len(call.outs)), d))
    return draft


@register_sharding_rule("relax.cumsum", "relax.cumprod")
def scan(call: CallShape) -> Draft:
    """All dims are kept; along the axis the totals of the parts are scanned over the devices.

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
    draft.per_element()
    return draft


@register_sharding_rule("relax.sort", "relax.argsort")
def order(call: CallShape) -> Draft:
    """Dims other than the axis are kept. The axis stays whole.

    Where an element goes depends on all others: a sort over devices moves every element about as
    often as a gather does. Only the first few can be merged (topk).
    """
    axis = int(call.attrs.axis) % len(call.ins[0])
    draft = _other_dims(call, axis)
    draft.default_why = "it is sorted: where an element goes depends on all others"
    return _compared(draft, axis)


@register_sharding_rule("relax.topk")
def topk(call: CallShape) -> Draft:
    """Dims other than the axis are kept; along the axis the best of the parts are merged.

    The result is whole along the axis.
    """
    shape, count = call.ins[0], int(call.attrs.k)
    axis = int(call.attrs.axis) % len(shape)
    draft = _other_dims(call, axis)
    extent = shape[axis]
    if 0 < count and not (isinstance(extent, int) and count >= extent):
        best = tuple(count if d == axis else n for d, n in enumerate(shape))
        comm_bytes = statistic_bytes(best, (), call.in_dtypes[0]) + statistic_bytes(best, ())
        draft.tie({0: axis}, {}, "stat", comm_bytes=comm_bytes, adjacent=True)
    draft.default_why = "all its elements are put in order"
    return _compared(draft, axis)


def _compared(draft: Draft, axis: int) -> Draft:
    extent = draft.call.ins[0][axis]
    draft.per_element(max(1, extent.bit_length() if isinstance(extent, int) else 10))
    return draft
