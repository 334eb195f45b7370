# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops that run along an axis: scans and sorts."""

from __future__ import annotations

from ..draft import CallShape, Draft
from ..registry import register_sharding_rule


def _other_dims(call: CallShape, axis: int, why: str) -> Draft:
    draft = Draft(call)
    for d in range(len(call.ins[0])):
        if d != axis:
            draft.tie({0: d}, dict.fromkeys(range(len(call.outs)), d))
    draft.default_why = why
    return draft


@register_sharding_rule("relax.cumsum", "relax.cumprod")
def scan(call: CallShape) -> Draft:
    """Dims other than the axis are kept; a running sum is linear."""
    axes = call.integers("axis")
    if axes is None:
        draft = Draft(call)
        draft.default_why = "the operand is flattened and scanned"
    else:
        draft = _other_dims(call, axes[0] % len(call.ins[0]), "it is scanned in order")
    if call.op == "relax.cumsum" and call.in_dtypes == call.out_dtypes:
        draft.linear((0,))
    draft.per_element()
    return draft


@register_sharding_rule("relax.topk", "relax.sort", "relax.argsort")
def order(call: CallShape) -> Draft:
    """Dims other than the axis are kept."""
    axis = int(call.attrs.axis) % len(call.ins[0])
    draft = _other_dims(call, axis, "it is sorted")
    extent = call.ins[0][axis]
    draft.per_element(max(1, extent.bit_length() if isinstance(extent, int) else 10))
    return draft
