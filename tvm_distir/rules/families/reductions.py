# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of reductions, statistics and softmax."""

from __future__ import annotations

from ..dims import elements, same
from ..draft import CallShape, Draft
from ..registry import register_sharding_rule
from .norms import statistic_bytes


def tie_reduction(
    draft: Draft,
    axes: tuple[int, ...],
    keepdims: bool,
    kind: str | None,
    rescale: bool = False,
    comm_bytes: int = 0,
) -> None:
    """Tie kept dims, and reduced ones by ``kind`` (None: they must be whole)."""
    shape, place = draft.call.ins[0], 0
    for d in range(len(shape)):
        if d in axes:
            if kind is not None:
                draft.tie({0: d}, {}, kind, rescale=rescale, comm_bytes=comm_bytes)
            place += keepdims
        else:
            draft.tie({0: d}, dict.fromkeys(range(len(draft.call.outs)), place))
            place += 1
    draft.work(elements(shape))


_KIND = {"sum": "sum", "mean": "sum", "max": "max", "min": "min", "prod": "prod"}


@register_sharding_rule(*(f"relax.{op}" for op in _KIND))
def reduction(call: CallShape) -> Draft:
    """Reduced dims give terms of the reduction; a mean's terms are rescaled by their part."""
    draft = Draft(call)
    name = call.op.removeprefix("relax.")
    axes = call.axes("axis", len(call.ins[0]))
    rounds = name == "mean" and not call.floats
    kind = None if rounds else _KIND[name]
    tie_reduction(draft, axes, bool(call.attrs.keepdims), kind, name == "mean")
    if rounds:
        draft.default_why = "an integer mean rounds"
    if name in ("sum", "mean") and not rounds:
        draft.linear((0,))
    return draft


@register_sharding_rule("relax.variance", "relax.std")
def spread(call: CallShape) -> Draft:
    """Kept dims; reduced ones with mean and squares reduced inside, the result complete."""
    draft = Draft(call)
    axes = call.axes("axis", len(call.ins[0]))
    rows = statistic_bytes(call.ins[0], axes, call.out_dtypes[0])
    tie_reduction(draft, axes, bool(call.attrs.keepdims), "stat", comm_bytes=rows)
    return draft


@register_sharding_rule("relax.argmax", "relax.argmin")
def extreme_place(call: CallShape) -> Draft:
    """Kept dims; the axis with the extreme and its first place reduced inside."""
    draft = Draft(call)
    shape = call.ins[0]
    axes = call.axes("axis", len(shape))
    flat = len(axes) > 1
    rows = statistic_bytes(shape, axes, "int64")
    kind = None if flat else "stat"
    tie_reduction(draft, axes, bool(call.attrs.keepdims), kind, comm_bytes=rows)
    draft.default_why = "the place counts all elements of the operand"
    return draft


@register_sharding_rule("relax.median")
def median(call: CallShape) -> Draft:
    """Reduced dims must be whole."""
    draft = Draft(call)
    tie_reduction(draft, call.axes("axis", len(call.ins[0])), bool(call.attrs.keepdims), None)
    draft.default_why = "the medians of the parts do not give the median"
    return draft


@register_sharding_rule("relax.collapse_sum_to", "relax.collapse_sum_like")
def collapse_sum(call: CallShape) -> Draft:
    """Sum over the dims that the result lacks or has with extent 1."""
    draft = Draft(call)
    shape, out = call.ins[0], call.outs[0]
    for d, extent in enumerate(shape):
        own = d - len(shape) + len(out)
        if own >= 0 and same(out[own], extent):
            like = {1: own} if len(call.ins) > 1 else {}
            draft.tie({0: d, **like}, {0: own})
        elif own < 0 or (isinstance(out[own], int) and out[own] == 1):
            draft.tie({0: d}, {}, "sum")
    draft.default_why = "its extent is not provably that of the result"
    draft.linear((0,))
    draft.work(elements(shape), in_bytes={1: 0} if len(call.ins) > 1 else None)
    return draft


@register_sharding_rule("relax.nn.softmax", "relax.nn.log_softmax")
def softmax(call: CallShape) -> Draft:
    """Kept dims; the axis with two statistics (maximum and sum) reduced inside, in float32."""
    draft = Draft(call)
    shape = call.ins[0]
    axis = int(call.attrs.axis) % len(shape)
    rows = statistic_bytes(shape, (axis,))
    for d in range(len(shape)):
        if d == axis:
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=rows)
        else:
            draft.tie({0: d}, {0: d})
    draft.per_element(5)
    return draft
