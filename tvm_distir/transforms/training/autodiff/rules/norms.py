# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of normalizations, computed in float32 for half precision.

Gradients of data are rounded to its type. Gradients of scales and shifts are sums over all samples,
and stay float32, in which micro-batches and devices add and reduce them.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    add,
    astype,
    mean,
    multiply,
    reshape,
    rsqrt,
    subtract,
)
from tvm.relax.op import sum as sum_op

from tvm_distir.core.rewriting import op_name

from .registry import Gradients, constant_like, fitted, register_gradient, shape_of

HALF = ("float16", "bfloat16")
"""Types whose sums are too coarse for statistics."""

SUMS = ("sum", "collapse_sum_to")
"""Ops that sum over samples."""


def _wide(value: Expr, builder: BlockBuilder) -> Var:
    """Cast a half-precision tensor to float32."""
    if str(value.ty.dtype) not in HALF:
        return value
    return builder.emit(astype(value, "float32"))


def _typed(gradients: list[Any], call: ir.Call) -> list[Any]:
    """Cast the gradient of half-precision data back to its type."""
    dtype = str(call.args[0].ty.dtype)
    return [astype(gradients[0], dtype) if dtype in HALF else gradients[0], *gradients[1:]]


def _normed(
    x: Expr, axes: list[int], epsilon: float, builder: BlockBuilder, centred: bool = True
) -> Any:
    """Return ``(x - mean) * r`` and ``r = 1 / sqrt(variance + epsilon)``, over some axes.

    Without centering, the mean counts as 0.
    """
    shifted = x
    if centred:
        shifted = builder.emit(subtract(x, builder.emit(mean(x, axes, keepdims=True))))
    spread = builder.emit(mean(builder.emit(multiply(shifted, shifted)), axes, keepdims=True))
    scale = builder.emit(rsqrt(builder.emit(add(spread, constant_like(epsilon, x)))))
    return builder.emit(multiply(shifted, scale)), scale


def through_norm(
    normed: Var, scale: Var, grad: Expr, axes: list[int], centred: bool, builder: BlockBuilder
) -> Expr:
    """Return the gradient of the data of a norm.

    ``r (g - mean(g) - xh mean(g xh))`` for the normalized ``xh``, the scale ``r`` and the gradient
    ``g`` of ``xh``; only centered norms have the first mean.
    """
    along = builder.emit(mean(builder.emit(multiply(grad, normed)), axes, keepdims=True))
    rest = builder.emit(subtract(grad, builder.emit(multiply(normed, along))))
    if centred:
        rest = builder.emit(subtract(rest, builder.emit(mean(grad, axes, keepdims=True))))
    return multiply(scale, rest)


@register_gradient("astype")
def _astype(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``astype``; a sum over samples of a widened weight stays wide."""
    dtype = str(call.args[0].ty.dtype)
    producer = builder.lookup_binding(grad) if isinstance(grad, relax.Var) else None
    if dtype in HALF and str(grad.ty.dtype) == "float32" and op_name(producer) in SUMS:
        return [grad]
    return [astype(grad, dtype)]


@register_gradient("nn.layer_norm", "nn.rms_norm")
def _layer_norm(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``layer_norm``, respecting the attributes that TVM's kernel ignores.

    An ``rms_norm`` is not centered, and has no beta.
    """
    x, gamma, *betas = (_wide(t, builder) for t in call.args)
    grad, centred = _wide(grad, builder), bool(betas)
    axes = [int(a) % len(shape_of(x)) for a in call.attrs.axes]
    normed, scale = _normed(x, axes, float(call.attrs.epsilon), builder, centred)
    inner = builder.emit(multiply(grad, gamma))
    through = through_norm(normed, scale, inner, axes, centred, builder)
    by_gamma = fitted(builder, multiply(grad, normed), gamma)
    return _typed([through, by_gamma, *(fitted(builder, grad, beta) for beta in betas)], call)


@register_gradient("nn.group_norm", "nn.instance_norm")
def _group_norm(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``group_norm``, normalized over the channels of a group and ``axes``."""
    x, gamma = (_wide(t, builder) for t in call.args[:2])
    grad = _wide(grad, builder)
    shape = list(shape_of(x))
    channel = int(call.attrs.channel_axis) % len(shape)
    axes = [int(a) % len(shape) for a in call.attrs.axes]
    single = str(call.op.name) == "relax.nn.instance_norm"
    groups = shape[channel] if single else int(call.attrs.num_groups)
    split = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
    over = sorted([channel + 1, *(a if a < channel else a + 1 for a in axes)])
    per_channel = [n if d == channel else 1 for d, n in enumerate(shape)]
    others = [d for d in range(len(shape)) if d != channel]
    parted = builder.emit(reshape(x, split))
    normed, scale = _normed(parted, over, float(call.attrs.epsilon), builder)
    inner = builder.emit(multiply(grad, builder.emit(reshape(gamma, per_channel))))
    inner = builder.emit(reshape(inner, split))
    through = builder.emit(through_norm(normed, scale, inner, over, True, builder))
    flat = builder.emit(reshape(normed, shape))
    by_gamma = sum_op(builder.emit(multiply(grad, flat)), others)
    return _typed([reshape(through, shape), by_gamma, sum_op(grad, others)], call)


@register_gradient("nn.batch_norm")
def _batch_norm(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``batch_norm``; running statistics have no gradient."""
    x, gamma, _beta, centre, spread = (_wide(t, builder) for t in call.args)
    a, shape = call.attrs, shape_of(x)
    channel = int(a.axis) % len(shape)
    others = [d for d in range(len(shape)) if d != channel]
    per_channel = [n if d == channel else 1 for d, n in enumerate(shape)]
    data = _wide(builder.emit(relax.TupleGetItem(grad, 0)), builder)
    epsilon, training = float(a.epsilon), bool(a.training)
    if training:
        normed, scale = _normed(x, others, epsilon, builder)
    else:
        scale = builder.emit(rsqrt(builder.emit(add(spread, constant_like(epsilon, x)))))
        scale = builder.emit(reshape(scale, per_channel))
        shifted = builder.emit(subtract(x, builder.emit(reshape(centre, per_channel))))
        normed = builder.emit(multiply(shifted, scale))
    inner = data
    if a.scale:
        inner = builder.emit(multiply(data, builder.emit(reshape(gamma, per_channel))))
    through = multiply(inner, scale)
    if training:
        through = through_norm(normed, scale, inner, others, True, builder)
    gradients = [
        through,
        sum_op(builder.emit(multiply(data, normed)), others) if a.scale else None,
        sum_op(data, others) if a.center else None,
    ]
    if training:
        return _typed([*gradients, None, None], call)
    along = builder.emit(multiply(inner, scale))
    by_spread = multiply(multiply(along, normed), multiply(constant_like(-0.5, x), scale))
    by_centre = sum_op(multiply(along, constant_like(-1.0, x)), others)
    return _typed([*gradients, by_centre, sum_op(by_spread, others)], call)
