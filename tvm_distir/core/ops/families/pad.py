# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines the sharding rule of padding, which moves rows to the devices that own them."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.halo import with_halo
from tvm_distir.core.ops.local.sliding import halo_dims, planned
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.ops.windows.halo import Window, tie_halo

FAMILY: Family = Family()


def pad_on_shards(cx: LocalCall) -> ir.Expr:
    """Move rows to the shards of the longer result along sharded dims; pad other dims locally."""
    a = cx.call.attrs
    widths, value, x = [int(n) for n in a.pad_width], float(a.pad_value), cx.operand(0)
    halo = halo_dims(cx)
    if not halo:
        return cx.same()
    for dim, result_dim in halo:
        window = Window(1, 1, 1, widths[2 * dim], widths[2 * dim + 1])
        x = with_halo(cx, 0, x, dim, planned(cx, dim, result_dim, window), value)
        widths[2 * dim] = widths[2 * dim + 1] = 0
    return x if not any(widths) else ir.Call(cx.call.op, [x], changed(a, pad_width=widths))


@FAMILY.rule("relax.nn.pad", local=pad_on_shards)
def pad(call: CallShape) -> Draft:
    """Shard dims without padding, shift rows of others. Linear when zeros (copies) are padded."""
    draft = Draft(call, why="it is padded, not by a constant or not on known rows")
    widths = call.integers("pad_width") or ()
    constant = str(call.attrs.pad_mode) == "constant"
    for d, (extent, result) in enumerate(zip(call.ins[0], call.outs[0])):
        before, after = widths[2 * d], widths[2 * d + 1]
        if before == after == 0:
            draft.tie({0: d}, {0: d})
            continue
        known = isinstance(extent, int) and isinstance(result, int)
        if constant and known and min(extent, result) > 1:
            tie_halo(draft, d, d, Window(1, 1, 1, before, after), extent, result)
    if not constant or float(call.attrs.pad_value) == 0:
        draft.linear((0,))
    return draft
