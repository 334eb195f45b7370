# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of image resizing."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.ops.windows.spatial import letters, unsupported

FAMILY: Family = Family()


NEAREST = "nearest_neighbor"
"""Method of a resize that copies pixels."""


def resize_on_shards(cx: LocalCall) -> ir.Call:
    """Resize to the local size; pixels are copied along a sharded spatial dim."""
    attrs, out = cx.call.attrs, cx.outs[0].local
    size = [n for n, letter in zip(out, str(attrs.layout), strict=True) if letter not in "NC"]
    return ir.Call(cx.call.op, [cx.operand(0), relax.ShapeExpr(size)], attrs)


@FAMILY.rule("relax.image.resize2d", "relax.image.resize3d", local=resize_on_shards)
def resize(call: CallShape) -> Draft:
    """Shard batch, channels, and spatial dims whose pixels are copied equally often."""
    draft = Draft(call, why="sampled positions depend on the full extent")
    data = letters(str(call.attrs.layout))
    if data is None:
        return unsupported(draft)
    for d, c in enumerate(data):
        if c in "NC":
            draft.tie({0: d}, {0: d})
        elif _copies(call, call.ins[0][d], call.outs[0][d]):
            draft.tie({0: d}, {0: d}, size=call.ins[0][d])
    return draft.per_element(8)


def _copies(call: CallShape, extent: int | ir.Expr, result: int | ir.Expr) -> bool:
    """Return whether a spatial dim of a resize repeats each pixel the same number of times.

    A result o of k copies comes from floor(o / k), or from the pixel whose middle is nearest to
    (o + 1/2) / k - 1/2: that is less than 1/2 away from a pixel, so rounding has no ties.
    """
    if not isinstance(extent, int) or not isinstance(result, int) or extent < 2:
        return False
    mode = str(call.attrs.coordinate_transformation_mode)
    rounding = str(call.attrs.rounding_method)
    aligned = (mode == "asymmetric" and rounding == "floor") or (
        mode == "half_pixel" and rounding.startswith("round")
    )
    return str(call.attrs.method) == NEAREST and aligned and result % extent == 0
