# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of reductions and of cumulative sums and products."""

from __future__ import annotations

import math

from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    astype,
    cumprod,
    cumsum,
    divide,
    equal,
    expand_dims,
    flip,
    logical_and,
    mean,
    multiply,
    ones_like,
    reshape,
    subtract,
    where,
    zeros_like,
)
from tvm.relax.op import prod as prod_op
from tvm.relax.op import sum as sum_op

from .registry import Gradients, constant_like, register_gradient, shape_of


def _axes(call: ir.Call) -> list[int]:
    """Return the dims that a call reduces."""
    rank = len(shape_of(call.args[0]))
    axis = call.attrs.axis
    return list(range(rank)) if axis is None else sorted(int(a) % rank for a in axis)


def _keep_dims(value: Expr, call: ir.Call, builder: BlockBuilder) -> Var:
    """Reshape a result, or its gradient, to keep the reduced dims with size 1."""
    axes = _axes(call)
    if bool(call.attrs.keepdims) or not axes or not shape_of(value):
        return value
    return builder.emit(expand_dims(value, axes))


@register_gradient("max", "min")
def _extreme(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``max`` and ``min``; ties share the gradient evenly, as in torch's amax."""
    x, axes = call.args[0], _axes(call)
    mine = builder.emit(astype(equal(x, _keep_dims(y, call, builder)), str(x.ty.dtype)))
    count = sum_op(mine, axes, keepdims=True)
    return [multiply(mine, divide(_keep_dims(grad, call, builder), count))]


@register_gradient("prod")
def _product(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``prod``: the product of the others, also where a single element is 0."""
    x, axes = call.args[0], _axes(call)
    zero, unit = constant_like(0.0, x), constant_like(1.0, x)
    empty = builder.emit(equal(x, zero))
    filled = builder.emit(where(empty, unit, x))
    count = builder.emit(sum_op(astype(empty, str(x.ty.dtype)), axes, keepdims=True))
    others = builder.emit(prod_op(filled, axes, keepdims=True))
    others = builder.emit(multiply(others, _keep_dims(grad, call, builder)))
    alone = where(logical_and(empty, equal(count, unit)), others, zero)
    return [where(equal(count, zero), divide(others, filled), alone)]


@register_gradient("std")
def _deviation(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Return ``(x - mean) / (n y)`` for a deviation y, or 0 where y is 0."""
    x, axes = call.args[0], _axes(call)
    count = math.prod(int(shape_of(x)[d]) for d in axes)
    inner, spread = _keep_dims(grad, call, builder), _keep_dims(y, call, builder)
    zero = constant_like(0.0, x)
    share = divide(multiply(inner, constant_like(1 / count, x)), spread)
    centered = subtract(x, mean(x, axes, keepdims=True))
    return [multiply(where(equal(spread, zero), zero, share), centered)]


def _backwards(value: Expr, axis: int, exclusive: bool, builder: BlockBuilder) -> Var:
    """Return the suffix sums along a dim, inclusive or exclusive."""
    turned = builder.emit(flip(value, axis))
    return builder.emit(flip(builder.emit(cumsum(turned, axis, exclusive=exclusive)), axis))


@register_gradient("cumsum")
def _cumsum(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``cumsum`` by suffix sums; TVM's rule ignores ``exclusive``."""
    x, a = call.args[0], call.attrs
    axis = 0 if a.axis is None else int(a.axis) % len(shape_of(x))
    gradient = _backwards(grad, axis, bool(a.exclusive), builder)
    if a.axis is None:
        gradient = builder.emit(reshape(gradient, x.ty.shape))
    return [astype(gradient, str(x.ty.dtype)) if gradient.ty.dtype != x.ty.dtype else gradient]


@register_gradient("cumprod")
def _cumprod(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``cumprod``, also at and after the first 0."""
    x, a = call.args[0], call.attrs
    data = x
    if a.axis is None:
        data = builder.emit(reshape(x, [math.prod(int(n) for n in shape_of(x))]))
    if y.ty.dtype != x.ty.dtype:
        data = builder.emit(astype(data, str(y.ty.dtype)))
    axis = 0 if a.axis is None else int(a.axis) % len(shape_of(x))
    exclusive = bool(a.exclusive)
    zero, unit = constant_like(0.0, data), constant_like(1.0, data)
    empty = builder.emit(equal(data, zero))
    count = builder.emit(cumsum(where(empty, ones_like(data), zeros_like(data)), axis))
    first = builder.emit(logical_and(empty, equal(count, unit)))
    filled = cumprod(where(first, unit, data), axis, exclusive=exclusive)
    before = divide(
        _backwards(builder.emit(multiply(grad, y)), axis, exclusive, builder),
        where(empty, unit, data),
    )
    total = _backwards(builder.emit(multiply(grad, filled)), axis, exclusive, builder)
    gradient = where(equal(count, zero), before, where(first, total, zero))
    if y.ty.dtype != x.ty.dtype:
        gradient = astype(gradient, str(x.ty.dtype))
    return [reshape(gradient, x.ty.shape) if a.axis is None else gradient]
