# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of normalizations, which reduce statistics over sharded dims inside.

Formulas and dtypes are those of TVM's kernels, so that results differ from those of a single device
only by the order of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, relax

from tvm_distir.core.ops.dims import same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.statistics import WIDE, Moments, cutting_axes, fill_padding, widened
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.ops.statistic import statistic_bytes

FAMILY: Family = Family()


def _inverse_root(cx: LocalCall, value: ir.Expr, epsilon: float) -> ir.Expr:
    """Compute ``1 / sqrt(value + epsilon)``."""
    small = cx.scalar(epsilon, str(value.ty.dtype))
    return cx.emit(relax.op.rsqrt(cx.emit(relax.op.add(value, small), "raised")), "scale")


def _back(cx: LocalCall, x: ir.Expr, dtype: str) -> ir.Expr:
    return x if str(x.ty.dtype) == dtype else cx.emit(relax.op.astype(x, dtype), "normed")


def _along(cx: LocalCall, scale: ir.Expr, dims: Sequence[int], ndim: int) -> ir.Expr:
    """Reshape a scale over some dims so that it broadcasts over ``ndim``."""
    sizes = [int(n) for n in scale.ty.shape]
    shape = [1] * ndim
    for size, d in zip(sizes, dims, strict=True):
        shape[d] = size
    return cx.emit(relax.op.reshape(scale, shape), "along")


def _scaled_and_shifted(
    cx: LocalCall, normed: ir.Expr, dims: Sequence[int], scale: bool = True, shift: bool = True
) -> ir.Expr:
    """Compute ``normed * gamma + beta`` from operands 1 and 2.

    TVM's kernels read the attributes ``scale`` and ``center`` of a batch norm only.
    """
    ndim = len(normed.ty.shape)
    result = normed
    if scale:
        result = cx.emit(relax.op.multiply(result, _along(cx, cx.operand(1), dims, ndim)))
    if shift:
        result = cx.emit(relax.op.add(result, _along(cx, cx.operand(2), dims, ndim)))
    return result


def layer_norm_on_shards(cx: LocalCall) -> ir.Expr:
    """Reduce mean, then variance, over the devices that shard the normalized dims."""
    shard = cx.ins[0].shard
    dims = [int(a) % len(shard.global_shape) for a in cx.call.attrs.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    _, centered, variance = Moments(cx, widened(cx, cx.operand(0)), dims, axes).centred()
    scale = _inverse_root(cx, variance, float(cx.call.attrs.epsilon))
    normed = _back(cx, cx.emit(relax.op.multiply(centered, scale), "normed"), shard.dtype)
    return _scaled_and_shifted(cx, normed, dims)


def rms_norm_on_shards(cx: LocalCall) -> ir.Expr:
    """Reduce the mean square over the devices that shard the normalized dims, in float32."""
    shard = cx.ins[0].shard
    dims = [int(a) % len(shard.global_shape) for a in cx.call.attrs.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    x, gamma = widened(cx, cx.operand(0)), widened(cx, cx.operand(1))
    inner = fill_padding(cx, x, dims, 0, WIDE)
    squares = cx.emit(relax.op.multiply(inner, inner), "squares")
    mean = Moments(cx, x, dims, axes).average(squares, "mean_square")
    scale = _inverse_root(cx, mean, float(cx.call.attrs.epsilon))
    normed = cx.emit(relax.op.multiply(scale, x), "normed")
    normed = cx.emit(relax.op.multiply(normed, _along(cx, gamma, dims, len(shard.global_shape))))
    return _back(cx, normed, shard.dtype)


@FAMILY.rule("relax.nn.layer_norm", local=layer_norm_on_shards)
@FAMILY.rule("relax.nn.rms_norm", local=rms_norm_on_shards)
def layer_norm(call: CallShape) -> Draft:
    """Shard all dims; statistics of the normalized dims are reduced inside the op.

    A layer norm reduces mean and variance, an rms norm the mean square. Gamma and beta are sharded
    as the dims they scale.
    """
    draft = Draft(call)
    shape = call.ins[0]
    axes = call.axes("axes", len(shape))
    rows = statistic_bytes(shape, axes)
    if call.op == "relax.nn.rms_norm":
        rows = -(-rows // 2)  # the mean square only, where a factor counts two statistics
    for d in range(len(shape)):
        if d in axes:
            scale_dim = axes.index(d)
            scales = dict.fromkeys(range(1, len(call.ins)), scale_dim)
            # (sum, difference,) square, sum, quotient, gamma, (beta)
            kernels, passes = (4, 7) if call.op == "relax.nn.rms_norm" else (7, 12)
            draft.tie(
                {0: d, **scales}, {0: d}, "stat", comm_bytes=rows, kernels=kernels, passes=passes
            )
        else:
            draft.tie({0: d}, {0: d})
    return draft.per_element(8 if len(call.ins) > 2 else 5)


def group_norm_on_shards(cx: LocalCall) -> ir.Expr:
    """Normalize the local groups; sums over sharded dims are reduced."""
    a, shard = cx.call.attrs, cx.ins[0].shard
    channel = int(a.channel_axis) % len(shard.global_shape)
    groups = int(a.num_groups) // shard.counts[channel]
    dims = [int(x) % len(shard.global_shape) for x in a.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        operands = [cx.operand(i) for i in range(3)]
        return ir.Call(cx.call.op, operands, changed(a, num_groups=groups))
    x = widened(cx, cx.operand(0))
    inner = fill_padding(cx, x, dims, 0, str(x.ty.dtype))
    shape = [int(n) for n in x.ty.shape]
    width = shape[channel] // groups
    split = [*shape[:channel], groups, width, *shape[channel + 1 :]]
    parted = cx.emit(relax.op.reshape(inner, split), "groups")
    over = [channel + 1, *(d if d < channel else d + 1 for d in dims)]
    count = width * math.prod(shard.global_shape[d] for d in dims)
    mean, variance = Moments(cx, parted, sorted(over), axes, count, clean=True).sums()
    scale = _inverse_root(cx, variance, float(a.epsilon))
    full = cx.emit(relax.op.reshape(x, split), "groups")
    centered = cx.emit(relax.op.subtract(full, mean), "apart")
    normed = cx.emit(relax.op.multiply(centered, scale), "normed")
    normed = _back(cx, cx.emit(relax.op.reshape(normed, shape), "normed"), shard.dtype)
    return _scaled_and_shifted(cx, normed, [channel])


@FAMILY.rule("relax.nn.group_norm", local=group_norm_on_shards)
def group_norm(call: CallShape) -> Draft:
    """Shard channels in full groups; dims in ``axes`` reduce two sums inside the op."""
    draft = Draft(call, why="a group of channels is normalized together")
    ndim, groups = len(call.ins[0]), int(call.attrs.num_groups)
    axes, channel = call.axes("axes", ndim), int(call.attrs.channel_axis) % ndim
    rows = statistic_bytes(call.ins[0], (*axes, channel)) * groups
    for d in range(ndim):
        if d == channel:
            draft.tie({0: d, 1: 0, 2: 0}, {0: d}, size=groups, uneven=False)
        elif d in axes:
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=rows)
        else:
            draft.tie({0: d}, {0: d})
    return draft.per_element(8)


def instance_norm_on_shards(cx: LocalCall) -> ir.Expr:
    """Normalize each instance; sums over sharded dims are reduced."""
    a, shard = cx.call.attrs, cx.ins[0].shard
    channel = int(a.channel_axis) % len(shard.global_shape)
    dims = [int(x) % len(shard.global_shape) for x in a.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    x = widened(cx, cx.operand(0))
    mean, variance = Moments(cx, x, dims, axes).sums()
    scale = _inverse_root(cx, variance, float(a.epsilon))
    centered = cx.emit(relax.op.subtract(x, mean), "apart")
    normed = _back(cx, cx.emit(relax.op.multiply(centered, scale), "normed"), shard.dtype)
    return _scaled_and_shifted(cx, normed, [channel])


@FAMILY.rule("relax.nn.instance_norm", local=instance_norm_on_shards)
def instance_norm(call: CallShape) -> Draft:
    """Shard channels and dims outside ``axes``; those in ``axes`` reduce two sums inside the op."""
    draft = Draft(call, why="channels are normalized together, and scaled separately")
    ndim = len(call.ins[0])
    axes, channel = call.axes("axes", ndim), int(call.attrs.channel_axis) % ndim
    rows = statistic_bytes(call.ins[0], axes)
    for d in range(ndim):
        if d == channel and d not in axes:
            draft.tie({0: d, 1: 0, 2: 0}, {0: d})
        elif d == channel:
            draft.replicate("in", 0, d, "channels are normalized together, and scaled separately")
        elif d in axes:
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=rows)
        else:
            draft.tie({0: d}, {0: d})
    return draft.per_element(8)


def batch_norm_on_shards(cx: LocalCall) -> ir.Expr:
    """Reduce mean and variance of a training batch; running statistics agree on all devices."""
    a, shard = cx.call.attrs, cx.ins[0].shard
    channel = int(a.axis) % len(shard.global_shape)
    dims = [d for d in range(len(shard.global_shape)) if d != channel]
    axes = cutting_axes(cx, dims)
    if not axes or not a.training:
        return cx.same()
    mean, centered, variance = Moments(cx, cx.operand(0), dims, axes).centred()
    small = cx.scalar(float(a.epsilon), shard.dtype)
    root = cx.emit(relax.op.sqrt(cx.emit(relax.op.add(variance, small), "raised")), "root")
    normed = cx.emit(relax.op.divide(centered, root), "normed")
    results = [_scaled_and_shifted(cx, normed, [channel], bool(a.scale), bool(a.center))]
    for number, statistic in ((3, mean), (4, variance)):
        moving = cx.operand(number)
        dtype = str(moving.ty.dtype)
        flat = cx.emit(relax.op.reshape(statistic, [shard.local[channel]]), "statistic")
        decayed = cx.emit(relax.op.multiply(cx.scalar(1 - float(a.momentum), dtype), moving))
        added = cx.emit(relax.op.multiply(cx.scalar(float(a.momentum), dtype), flat))
        results.append(cx.emit(relax.op.add(decayed, added), "moving"))
    return relax.Tuple(results)


@FAMILY.rule("relax.nn.batch_norm", local=batch_norm_on_shards)
def batch_norm(call: CallShape) -> Draft:
    """Shard channels, with the weights and statistics, and all other dims.

    In training mean and variance of the other dims are reduced inside, and the running
    statistics come out whole. Operands data, gamma, beta, moving mean, moving variance; results
    data, mean, variance.
    """
    draft = Draft(call, why="it is not provably one per channel")
    shape = call.ins[0]
    channel = int(call.attrs.axis) % len(shape)
    others = [d for d in range(len(shape)) if d != channel]
    row = statistic_bytes(shape, others, call.in_dtypes[0])
    for d, extent in enumerate(shape):
        if d == channel:
            matching = {i: 0 for i in range(1, 5) if same(call.ins[i][0], extent)}
            draft.tie({0: d, **matching}, {0: d, 1: 0, 2: 0})
        elif call.attrs.training:
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=row)
        else:
            draft.tie({0: d}, {0: d})
    return draft.per_element(10 if call.attrs.training else 5)
