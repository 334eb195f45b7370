# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of transposed convolutions: windows that write into sharded rows."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir

from tvm_distir.core.ir.operators.names import TRANSPOSED
from tvm_distir.core.ops.dims import elements, nominal, size_bytes
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.halo import picked, returned, with_halo, without_padding
from tvm_distir.core.ops.local.sliding import halo_dims, spatial
from tvm_distir.core.ops.padding import ZERO_TERMS
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.ops.windows.halo import exchange, windows
from tvm_distir.core.ops.windows.halo_back import gathers, spread
from tvm_distir.core.ops.windows.spatial import (
    convolution_layouts,
    tie_channels,
    tie_spread_rows,
    unsupported,
)

FAMILY: Family = Family()


def _row_bytes(shard: Any, dim: int) -> int:
    """Return the size of a row of a device's shard."""
    shape = [1 if d == dim else n for d, n in enumerate(shard.local)]
    return size_bytes(tuple(shape), shard.dtype)


def transposed_convolution_on_shards(cx: LocalCall) -> ir.Expr:
    """Fetch rows of the operand or return rows of the result, whichever takes fewer bytes.

    Sharded along its channels, a grouped convolution has the local groups only.
    """
    a, weight, data, out = cx.call.attrs, cx.ins[1].shard, cx.ins[0].shard, cx.outs[0]
    layout, kernel_layout = str(a.data_layout), str(a.kernel_layout)
    names = spatial(layout)
    sliding = windows(a, tuple(weight.global_shape[kernel_layout.index(c)] for c in names))
    pads = [w.before for w in sliding] + [w.after for w in sliding]
    more, after = [int(n) for n in a.output_padding], []
    more *= len(names) // len(more)
    x = cx.operand(0)
    for dim, result_dim in halo_dims(cx):
        k = names.index(layout[dim])
        window, axes = sliding[k], cx.axes_of_dim(0, dim)
        short, long, ranks = data.global_shape[dim], out.global_shape[result_dim], data.counts[dim]
        sizes = _row_bytes(data, dim), _row_bytes(out, result_dim)
        if gathers(window, short, long, ranks, *sizes):
            plan = spread(window, short, long, ranks)
            x = with_halo(cx, 0, x, dim, plan.fetch)
            pads[k], pads[k + len(names)], more[k] = plan.front, plan.back, plan.more
            if plan.ragged:
                after.append((picked, result_dim, axes, plan.fetch))
        else:
            x = without_padding(cx, 0, x, dim)
            pads[k] = pads[k + len(names)] = more[k] = 0
            after.append((returned, result_dim, axes, exchange(window, long, short, ranks)))
    groups = max(1, int(a.groups) // data.counts[layout.index("C")])
    attrs = changed(a, groups=groups, padding=pads, output_padding=more)
    y: ir.Expr = ir.Call(cx.call.op, [x, cx.operand(1)], attrs)
    for step, result_dim, axes, exchanged in reversed(after):
        y = step(cx, cx.emit(y, "spread"), result_dim, axes, exchanged)
    return y


@FAMILY.rule(*TRANSPOSED, local=transposed_convolution_on_shards, padding=ZERO_TERMS)
def transposed_convolution(call: CallShape) -> Draft:
    """Shard as for a convolution; the windows are spread. The kernel's O counts a group's channels.

    FLOPs: 2 x operand elements x (output channels per group) x kernel.
    """
    draft = Draft(call)
    layouts = convolution_layouts(call)
    if layouts is None:
        return unsupported(draft)
    data, weight, out = layouts
    w = call.ins[1]
    tie_channels(draft, data, weight, out, "IO")
    names = [c for c in data if c not in "NC"]
    kernel = tuple(nominal(w[weight.index(c)]) for c in names)
    for c, window in zip(names, windows(call.attrs, kernel)):
        tie_spread_rows(draft, data.index(c), out.index(c), window, "transposed convolution")
        draft.replicate("in", 1, weight.index(c), "kernel positions are indexed together")
    draft.linear((0,), (1,))
    taps = nominal(w[weight.index("O")]) * math.prod(kernel)
    return draft.work(2 * elements(call.ins[0]) * taps, "conv")
