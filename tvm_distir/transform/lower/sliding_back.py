# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops whose windows write: transposed convolutions and the gradients of pools on shards."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax

from ...rules.dims import size_bytes
from ...rules.halo import Window, exchange, windows
from ...rules.halo_back import gathers, spread
from .calls import LocalCall, register_local
from .fold import changed
from .halo import block, picked, returned, widened, with_halo, without_padding
from .sliding import halo_dims, lowest, pool_kernel, spatial


def _row_bytes(own: Any, dim: int) -> int:
    """Size of one row of a device's shard."""
    shape = [1 if d == dim else n for d, n in enumerate(own.local)]
    return size_bytes(tuple(shape), own.dtype)


@register_local(*(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3)))
def transposed_convolution(cx: LocalCall) -> Any:
    """Rows of the operand are fetched, or rows of the result returned, whichever are fewer bytes.

    Cut along its channels, a grouped one has its own groups only.
    """
    a, weight, own, out = cx.call.attrs, cx.ins[1].shard, cx.ins[0].shard, cx.outs[0]
    layout, kernel_layout = str(a.data_layout), str(a.kernel_layout)
    names = spatial(layout)
    kernel = tuple(weight.whole[kernel_layout.index(c)] for c in names)
    sliding = windows(a, kernel)
    pads = [w.before for w in sliding] + [w.after for w in sliding]
    more, after = [int(n) for n in a.output_padding], []
    more *= len(names) // len(more)
    x = cx.operand(0)
    for dim, result_dim in halo_dims(cx):
        k = names.index(layout[dim])
        window, axes = sliding[k], cx.axes_of_dim(0, dim)
        short, long, ranks = own.whole[dim], out.whole[result_dim], own.counts[dim]
        sizes = _row_bytes(own, dim), _row_bytes(out, result_dim)
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
    groups = int(a.groups)
    if groups > 1:
        groups //= own.counts[layout.index("C")]
    attrs = changed(a, groups=groups, padding=pads, output_padding=more)
    y: Any = ir.Call(cx.call.op, [x, cx.operand(1)], attrs)
    for step, result_dim, axes, exchanged in reversed(after):
        y = step(cx, cx.emit(y, "spread"), result_dim, axes, exchanged)
    return y


@register_local("relax.grad.max_pool2d_backward")
def max_pool_backward(cx: LocalCall) -> Any:
    """A rank finds the largest elements of its own windows, and returns what others hold.

    Along a dim with fewer than kernel / stride windows TVM's kernel reads, as those of its last
    elements, windows of the next row: windows without a gradient are put there.
    """
    a, grads, data = cx.call.attrs, cx.ins[0].shard, cx.ins[1].shard
    dims = [dim for dim, _ in halo_dims(cx)]
    if not dims:
        return cx.same()
    names, sliding = spatial(str(a.layout)), windows(a, pool_kernel(a))
    pads = [w.before for w in sliding] + [w.after for w in sliding]
    grad, x, plans = cx.operand(0), cx.operand(1), []
    for dim in dims:
        k = names.index(str(a.layout)[dim])
        plan = exchange(sliding[k], data.whole[dim], grads.whole[dim], data.counts[dim])
        grad = without_padding(cx, 0, grad, dim)
        x = with_halo(cx, 1, x, dim, plan, lowest(data.dtype))
        spare = max(0, -(-sliding[k].kernel // sliding[k].stride) - grads.local[dim])
        grad = widened(cx, grad, dim, 0, spare)
        x = widened(cx, x, dim, 0, spare * sliding[k].stride)
        pads[k] = pads[k + len(names)] = 0
        plans.append((dim, cx.axes_of_dim(1, dim), plan))
    y: Any = ir.Call(cx.call.op, [grad, x], changed(a, padding=pads))
    for dim, axes, plan in reversed(plans):
        y = block(cx, cx.emit(y, "spread"), dim, 0, plan.span)
        y = returned(cx, y, dim, axes, plan)
    return y


@register_local("relax.grad.avg_pool2d_backward")
def avg_pool_backward(cx: LocalCall) -> Any:
    """Neighbours' gradients are fetched, divided by what their windows count before they leave."""
    a, grads, data = cx.call.attrs, cx.ins[0].shard, cx.ins[1].shard
    dims = [dim for dim, _ in halo_dims(cx)]
    if not dims:
        return cx.same()
    layout, kernel = str(a.layout), pool_kernel(a)
    names, sliding = spatial(layout), windows(a, kernel)
    pads = [w.before for w in sliding] + [w.after for w in sliding]
    if bool(a.ceil_mode):
        for k, window in enumerate(sliding):
            pads[k + len(names)] += window.stride - 1
    grad, shape, ragged = cx.operand(0), list(data.local), []
    if not a.count_include_pad:
        for k, name in enumerate(names):
            grad = _divided(cx, grad, layout.index(name), sliding[k])
    for dim in dims:
        k = names.index(layout[dim])
        plan = spread(sliding[k], grads.whole[dim], data.whole[dim], data.counts[dim])
        grad = with_halo(cx, 0, grad, dim, plan.fetch)
        pads[k], pads[k + len(names)], shape[dim] = plan.front, plan.back, plan.count
        if plan.ragged:
            ragged.append((dim, plan.fetch))
    x = cx.operand(1)
    if shape != list(data.local):
        x = cx.emit(relax.op.zeros(shape, data.dtype), "data")
    attrs = changed(a, padding=pads, ceil_mode=False, count_include_pad=True)
    y: Any = ir.Call(cx.call.op, [grad, x], attrs)
    for dim, fetch in reversed(ragged):
        y = picked(cx, cx.emit(y, "spread"), dim, cx.axes_of_dim(1, dim), fetch)
    return y


def _divided(cx: LocalCall, grad: Any, dim: int, window: Window) -> Any:
    """Make up for windows that count fewer rows: their gradients times kernel / rows counted."""
    own, extent = cx.ins[0].shard, cx.ins[1].shard.whole[dim]
    starts = np.arange(own.counts[dim] * own.local[dim]) * window.stride - window.before
    counted = np.minimum(starts + window.kernel, extent) - np.maximum(starts, 0)
    if (counted[: own.whole[dim]] == window.kernel).all():
        return grad
    shares = window.kernel / np.maximum(counted, 1)
    shape = [own.local[dim] if d == dim else 1 for d in range(len(own.local))]
    table = shares.reshape(own.counts[dim], *shape)
    axes = cx.axes_of_dim(0, dim)
    if axes:
        places = cx.scalar(table, own.dtype)
        mine = cx.emit(relax.op.take(places, cx.position(axes), axis=0, mode="clip"), "shares")
    else:
        mine = cx.scalar(table[0], own.dtype)
    return cx.emit(relax.op.multiply(grad, mine), "divided")
