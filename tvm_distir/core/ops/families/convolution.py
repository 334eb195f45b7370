# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of convolutions: windows over sharded rows, and weight gradients."""

from __future__ import annotations

import math

from tvm import ir

from tvm_distir.core.ir.operators.names import CONVOLUTIONS
from tvm_distir.core.ops.dims import elements, nominal
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.halo import with_halo
from tvm_distir.core.ops.local.sliding import slid, spatial
from tvm_distir.core.ops.padding import ZERO_TERMS
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.ops.windows.halo import Window, exchange, windows
from tvm_distir.core.ops.windows.halo_back import tie_contracted, turned
from tvm_distir.core.ops.windows.spatial import (
    convolution_layouts,
    no_blocks,
    tie_channels,
    tie_spatial,
    unsupported,
)

FAMILY: Family = Family()


def _contracted(cx: LocalCall, layout: str) -> list[tuple[int, int]]:
    """Return the spatial dims of data and kernel that are summed over (a weight's gradient)."""
    result = []
    for factor in cx.sharding.factors:
        if factor is None or not factor.reduces:
            continue
        dim, kernel_dim = factor.ins
        if dim is None or kernel_dim is None or layout[dim] in "NC":
            continue
        if cx.ins[0].shard.counts[dim] > 1 and (dim, kernel_dim) not in result:
            cx.check_order(cx.ins[0].shard, dim)
            cx.check_order(cx.ins[1].shard, kernel_dim)
            result.append((dim, kernel_dim))
    return result


def convolution_on_shards(cx: LocalCall) -> ir.Call:
    """Exchange rows along sharded spatial dims; with sharded channels, each device has its groups.

    A weight's gradient gets the rows that the windows at its positions read.
    """
    a, weight = cx.call.attrs, cx.ins[1].shard
    layout, kernel_layout = str(a.data_layout), str(a.kernel_layout)
    kernel = tuple(weight.global_shape[kernel_layout.index(c)] for c in layout if c not in "NC")
    x, pads = slid(cx, layout, kernel, 0)
    for dim, kernel_dim in _contracted(cx, layout):
        k = spatial(layout).index(layout[dim])
        data, taps = cx.ins[0].shard, cx.outs[0].global_shape[str(a.out_layout).index(layout[dim])]
        window = turned(windows(a, kernel)[k], taps)
        plan = exchange(
            window, data.global_shape[dim], weight.global_shape[kernel_dim], data.counts[dim]
        )
        x = with_halo(cx, 0, x, dim, plan)
        pads[k] = pads[k + len(kernel)] = 0
    groups = max(1, int(a.groups) // cx.ins[0].shard.counts[layout.index("C")])
    return ir.Call(cx.call.op, [x, cx.operand(1)], changed(a, padding=pads, groups=groups))


def _tie_contracted(draft: Draft, data: str, weight: str, out: str, sliding: list[Window]) -> None:
    """Tie the spatial dims of a convolution that is a weight's gradient, which sums all rows.

    Such a convolution has the samples as its input channels: its data layout names them first.
    """
    for name, window in zip([c for c in data if c not in "NC"], sliding):
        d, k, o = data.index(name), weight.index(name), out.index(name)
        why = no_blocks(draft.call.ins[0][d], draft.call.ins[1][k])
        if why is None and isinstance(draft.call.outs[0][o], int):
            tie_contracted(draft, d, k, window, draft.call.outs[0][o])
        draft.replicate("out", 0, o, "positions of the kernel whose gradient it is")
        for number, dim in ((0, d), (1, k)):
            draft.replicate("in", number, dim, f"spatial dim of a weight's gradient: {why}")


@FAMILY.rule(*CONVOLUTIONS, local=convolution_on_shards, padding=ZERO_TERMS)
def convolution(call: CallShape) -> Draft:
    """Shard batch and output channels, sum over input channels; groups are sharded in full.

    Spatial dims need neighbour rows; those of a weight's gradient are summed, too.
    FLOPs: 2 x results x (input channels per group) x kernel.
    """
    draft = Draft(call)
    layouts = convolution_layouts(call)
    if layouts is None:
        return unsupported(draft)
    data, weight, out = layouts
    w = call.ins[1]
    kernel = tuple(nominal(w[weight.index(c)]) for c in data if c not in "NC")
    tie_channels(draft, data, weight, out, "OI")
    for c in data:
        if c not in "NC":
            draft.replicate("in", 1, weight.index(c), "kernel positions are indexed together")
    sliding = windows(call.attrs, kernel)
    if data.index("C") < data.index("N"):
        _tie_contracted(draft, data, weight, out, sliding)
    else:
        tie_spatial(draft, data, out, sliding, "convolution")
    draft.linear((0,), (1,))
    taps = nominal(w[weight.index("I")]) * math.prod(kernel)
    return draft.work(2 * elements(call.outs[0]) * taps, "conv")
