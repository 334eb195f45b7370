# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of gradients of pools: windows that write into sharded rows."""

from __future__ import annotations

import math

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.halo import (
    block,
    picked,
    returned,
    with_halo,
    with_rows,
    without_padding,
)
from tvm_distir.core.ops.local.sliding import halo_dims, lowest, pool_kernel, spatial
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.ops.windows.halo import Window, exchange, windows
from tvm_distir.core.ops.windows.halo_back import spread
from tvm_distir.core.ops.windows.spatial import letters, tie_spread_rows, unsupported

FAMILY: Family = Family()


def max_pool_backward_on_shards(cx: LocalCall) -> ir.Expr:
    """Locate the maxima of the local windows, and return gradients of rows on other ranks.

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
        plan = exchange(
            sliding[k], data.global_shape[dim], grads.global_shape[dim], data.counts[dim]
        )
        grad = without_padding(cx, 0, grad, dim)
        x = with_halo(cx, 1, x, dim, plan, lowest(data.dtype))
        spare = max(0, -(-sliding[k].kernel // sliding[k].stride) - grads.local[dim])
        grad = with_rows(cx, grad, dim, 0, spare)
        x = with_rows(cx, x, dim, 0, spare * sliding[k].stride)
        pads[k] = pads[k + len(names)] = 0
        plans.append((dim, cx.axes_of_dim(1, dim), plan))
    y: ir.Expr = ir.Call(cx.call.op, [grad, x], changed(a, padding=pads))
    for dim, axes, plan in reversed(plans):
        y = block(cx, cx.emit(y, "spread"), dim, 0, plan.span)
        y = returned(cx, y, dim, axes, plan)
    return y


def _divided(cx: LocalCall, grad: ir.Expr, dim: int, window: Window) -> ir.Expr:
    """Correct windows that count fewer rows: multiply their gradients by kernel / rows counted."""
    shard, extent = cx.ins[0].shard, cx.ins[1].shard.global_shape[dim]
    starts = np.arange(shard.counts[dim] * shard.local[dim]) * window.stride - window.before
    counted = np.minimum(starts + window.kernel, extent) - np.maximum(starts, 0)
    if (counted[: shard.global_shape[dim]] == window.kernel).all():
        return grad
    shares = window.kernel / np.maximum(counted, 1)
    shape = [shard.local[dim] if d == dim else 1 for d in range(len(shard.local))]
    table = shares.reshape(shard.counts[dim], *shape)
    axes = cx.axes_of_dim(0, dim)
    if axes:
        factors = cx.scalar(table, shard.dtype)
        mine = cx.emit(relax.op.take(factors, cx.position(axes), axis=0, mode="clip"), "shares")
    else:
        mine = cx.scalar(table[0], shard.dtype)
    return cx.emit(relax.op.multiply(grad, mine), "divided")


def avg_pool_backward_on_shards(cx: LocalCall) -> ir.Call:
    """Fetch neighbours' gradients, each divided by the count of its window before it is sent."""
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
        plan = spread(sliding[k], grads.global_shape[dim], data.global_shape[dim], data.counts[dim])
        grad = with_halo(cx, 0, grad, dim, plan.fetch)
        pads[k], pads[k + len(names)], shape[dim] = plan.front, plan.back, plan.count
        if plan.ragged:
            ragged.append((dim, plan.fetch))
    x = cx.operand(1)
    if shape != list(data.local):
        x = cx.emit(relax.op.zeros(shape, data.dtype), "data")
    attrs = changed(a, padding=pads, ceil_mode=False, count_include_pad=True)
    y: ir.Expr = ir.Call(cx.call.op, [grad, x], attrs)
    for dim, fetch in reversed(ragged):
        y = picked(cx, cx.emit(y, "spread"), dim, cx.axes_of_dim(1, dim), fetch)
    return y


@FAMILY.rule("relax.grad.max_pool2d_backward", local=max_pool_backward_on_shards)
@FAMILY.rule("relax.grad.avg_pool2d_backward", local=avg_pool_backward_on_shards)
def pool_backward(call: CallShape) -> Draft:
    """Shard batch and channels, exchange rows of spatial dims; linear in the gradient.

    Operands: gradient of the result, data (of which an average needs the shape only).
    """
    draft = Draft(call)
    data = letters(str(call.attrs.layout))
    if data is None or str(call.attrs.out_layout or data) != data:
        return unsupported(draft)
    kernel = call.integers("pool_size") or (1,)
    names = [c for c in data if c not in "NC"]
    kernel = kernel * (len(names) // len(kernel))
    for c in "NC":
        d = data.index(c)
        draft.tie({0: d, 1: d}, {0: d})
    for c, window in zip(names, windows(call.attrs, kernel)):
        d = data.index(c)
        tie_spread_rows(draft, d, d, window, "pool's gradient", (1,))
    draft.linear((0,))
    return draft.per_element(math.prod(kernel))
