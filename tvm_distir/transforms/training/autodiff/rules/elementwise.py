# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of elementwise ops.

Where a function has a kink its gradient there is the mean of both sides, as torch has it: of
``abs`` it is 0, and two equal operands of ``maximum`` get half of it each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    add,
    cosh,
    divide,
    equal,
    exp,
    floor,
    greater,
    less,
    log,
    logical_or,
    multiply,
    negative,
    power,
    rsqrt,
    sigmoid,
    sign,
    sinh,
    subtract,
    trunc,
    where,
)

from tvm_distir.support import GenericConst

from .registry import Gradients, constant_like, register_gradient, unbroadcast

Slope = Callable[[Any, Any], Any]
"""A function from operand and result to the derivative."""


def register_slope(*names: str) -> Callable[[Slope], Slope]:
    """Register the derivative of some unary ops."""

    def keep(slope: Slope) -> Slope:
        def gradient(y: Var, call: ir.Call, grad: Expr, _: BlockBuilder) -> list[Expr]:
            return [multiply(grad, slope(call.args[0], y))]

        register_gradient(*names)(gradient)
        return slope

    return keep


def _less_square(x: Expr) -> Expr:
    """Return ``1 - x^2``."""
    return subtract(constant_like(1.0, x), multiply(x, x))


def _more_square(x: Expr) -> Expr:
    """Return ``1 + x^2``."""
    return add(constant_like(1.0, x), multiply(x, x))


register_slope("abs")(lambda x, y: sign(x))
register_slope("acos")(lambda x, y: negative(rsqrt(_less_square(x))))
register_slope("acosh")(lambda x, y: rsqrt(subtract(multiply(x, x), constant_like(1.0, x))))
register_slope("asin")(lambda x, y: rsqrt(_less_square(x)))
register_slope("asinh")(lambda x, y: rsqrt(_more_square(x)))
register_slope("atan")(lambda x, y: divide(constant_like(1.0, x), _more_square(x)))
register_slope("atanh")(lambda x, y: divide(constant_like(1.0, x), _less_square(x)))
register_slope("cosh")(lambda x, y: sinh(x))
register_slope("rsqrt")(lambda x, y: multiply(constant_like(-0.5, y), multiply(y, multiply(y, y))))
register_slope("sinh")(lambda x, y: cosh(x))
register_slope("square")(lambda x, y: multiply(constant_like(2.0, x), x))
register_slope("tan")(lambda x, y: _more_square(y))


@register_slope("erf")
def _erf(x: Expr, _: Var) -> Expr:
    """Return ``2 / sqrt(pi) exp(-x^2)``."""
    bell = exp(multiply(constant_like(-1.0, x), multiply(x, x)))
    return multiply(constant_like(2 / math.sqrt(math.pi), x), bell)


@register_gradient("clip")
def _clip(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``clip``; elements at a bound have a gradient, as in torch."""
    x, low, high = call.args
    below = less(x, constant_like(float(low.value), x))
    above = greater(x, constant_like(float(high.value), x))
    return [where(logical_or(below, above), constant_like(0.0, grad), grad), None, None]


@register_gradient("power")
def _power(y: Var, call: ir.Call, grad: Expr, _: BlockBuilder) -> Gradients:
    """Return ``n x^(n-1)`` and ``x^n log(x)``, with 0 at 0 where TVM's rule gives NaN."""
    x, n = call.args
    zero, unit = constant_like(0.0, x), constant_like(1.0, x)
    slope = multiply(n, power(x, subtract(n, unit)))
    if not isinstance(n, GenericConst) or not n.value.numpy().astype("float64").all():
        slope = where(equal(n, zero), zero, slope)
    inner = where(equal(x, zero), zero, multiply(y, log(x)))
    by_x = unbroadcast(multiply(grad, slope), grad, x)
    return [by_x, unbroadcast(multiply(grad, inner), grad, n)]


def _shared(mine: Expr, equals: Expr, grad: Expr, like: Expr) -> Expr:
    """Return the gradient where an operand equals the result, halved where both do."""
    zero = constant_like(0.0, grad)
    half = multiply(grad, constant_like(0.5, grad))
    return unbroadcast(where(mine, grad, where(equals, half, zero)), grad, like)


@register_gradient("maximum", "minimum")
def _maximum(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``maximum``; ties share the gradient, unlike in TVM's rule."""
    a, b = call.args
    first, second = greater(a, b), less(a, b)
    if str(call.op.name) == "relax.minimum":
        first, second = second, first
    equals = equal(a, b)
    return [_shared(first, equals, grad, a), _shared(second, equals, grad, b)]


@register_gradient("mod", "floor_mod")
def _mod(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``a - q b`` for an integer q."""
    a, b = call.args
    rounded = trunc if str(call.op.name) == "relax.mod" else floor
    times = negative(rounded(divide(a, b)))
    return [unbroadcast(grad, grad, a), unbroadcast(multiply(grad, times), grad, b)]


@register_gradient("atan2")
def _atan2(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Return ``b / (a^2 + b^2)`` and ``-a / (a^2 + b^2)``."""
    a, b = call.args
    share = divide(grad, add(multiply(a, a), multiply(b, b)))
    by_b = multiply(share, negative(a))
    return [unbroadcast(multiply(share, b), grad, a), unbroadcast(by_b, grad, b)]


@register_gradient("log_add_exp")
def _log_add_exp(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Return ``sigmoid(a - b)`` and ``sigmoid(b - a)``."""
    a, b = call.args
    ours, theirs = sigmoid(subtract(a, b)), sigmoid(subtract(b, a))
    by_a = unbroadcast(multiply(grad, ours), grad, a)
    return [by_a, unbroadcast(multiply(grad, theirs), grad, b)]


@register_gradient("ewise_fma")
def _fused(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``a b + c``."""
    a, b, _c = call.args
    return [multiply(grad, b), multiply(grad, a), grad]


@register_gradient("where")
def _where(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``where``, summed over broadcast dims, unlike TVM's rule."""
    chosen, a, b = call.args
    zero = constant_like(0.0, grad)
    return [
        None,
        unbroadcast(where(chosen, grad, zero), grad, a),
        unbroadcast(where(chosen, zero, grad), grad, b),
    ]
