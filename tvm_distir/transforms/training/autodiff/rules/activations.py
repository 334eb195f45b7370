# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of activations.

The gradient of ReLU, and of similar functions, at 0 is that of the negative side, as in torch.
"""

from __future__ import annotations

import math

from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    add,
    collapse_sum_to,
    exp,
    greater,
    less_equal,
    multiply,
    reshape,
    sigmoid,
    subtract,
    tanh,
    where,
)
from tvm.relax.op import erf as erf_op

from .elementwise import register_slope
from .registry import Gradients, constant_like, register_gradient, shape_of

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
"""The constants of Klambauer et al., Self-Normalizing Neural Networks (2017)."""


@register_gradient("nn.relu")
def _relu(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``relu`` with gradient 0 at 0, unlike TVM's rule."""
    zero = constant_like(0.0, grad)
    return [where(less_equal(call.args[0], zero), zero, grad)]


@register_gradient("nn.leakyrelu")
def _leaky(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    x = call.args[0]
    slower = multiply(grad, constant_like(float(call.attrs.alpha), x))
    return [where(greater(x, constant_like(0.0, x)), grad, slower)]


@register_gradient("nn.prelu")
def _prelu(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``prelu``; slopes are per channel, or the same for all channels."""
    x, slopes = call.args
    axis = int(call.attrs.axis) % len(shape_of(x))
    wide = [shape_of(slopes)[0] if d == axis else 1 for d in range(len(shape_of(x)))]
    zero = constant_like(0.0, x)
    right = builder.emit(greater(x, zero))
    through = where(right, grad, multiply(grad, reshape(slopes, wide)))
    by_slope = builder.emit(where(right, zero, multiply(grad, x)))
    return [through, reshape(collapse_sum_to(by_slope, wide), slopes.ty.shape)]


@register_slope("nn.selu")
def _selu(x: Expr, _: Var) -> Expr:
    left = multiply(constant_like(SELU_SCALE * SELU_ALPHA, x), exp(x))
    return where(greater(x, constant_like(0.0, x)), constant_like(SELU_SCALE, x), left)


@register_gradient("nn.softplus")
def _softplus(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``log(1 + exp(beta x)) / beta``, which is x above the threshold."""
    x = call.args[0]
    scaled = builder.emit(multiply(x, constant_like(float(call.attrs.beta), x)))
    straight = greater(scaled, constant_like(float(call.attrs.threshold), x))
    return [where(straight, grad, multiply(grad, sigmoid(scaled)))]


@register_gradient("nn.gelu")
def _gelu(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``gelu`` as ``Phi(x) + x phi(x)``, normal distribution and density."""
    x = call.args[0]
    root = builder.emit(erf_op(builder.emit(multiply(constant_like(math.sqrt(0.5), x), x))))
    below = builder.emit(multiply(constant_like(0.5, x), add(constant_like(1.0, x), root)))
    bell = builder.emit(exp(builder.emit(multiply(constant_like(-0.5, x), builder.emit(x * x)))))
    density = builder.emit(multiply(constant_like(1 / math.sqrt(2 * math.pi), x), bell))
    return [multiply(grad, builder.emit(add(below, builder.emit(multiply(x, density)))))]


@register_gradient("nn.gelu_tanh")
def _gelu_tanh(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``x/2 (1 + t)``, ``t = tanh u``, ``u = k (x + c x^3)``.

    ``(1 + t)/2 + x/2 (1 - t^2) k (1 + 3 c x^2)``.
    """
    x = call.args[0]
    k, c = math.sqrt(2 / math.pi), 0.044715
    half, unit = constant_like(0.5, x), constant_like(1.0, x)
    squared = builder.emit(multiply(x, x))
    inner = builder.emit(add(unit, builder.emit(multiply(constant_like(c, x), squared))))
    inner = builder.emit(multiply(x, inner))
    t = builder.emit(tanh(builder.emit(multiply(constant_like(k, x), inner))))
    outer = builder.emit(multiply(half, builder.emit(add(unit, t))))
    slope = builder.emit(add(unit, builder.emit(multiply(constant_like(3 * c, x), squared))))
    slope = builder.emit(multiply(constant_like(0.5 * k, x), slope))
    bell = builder.emit(subtract(unit, builder.emit(multiply(t, t))))
    bent = builder.emit(multiply(x, builder.emit(multiply(bell, slope))))
    return [multiply(grad, builder.emit(add(outer, bent)))]
