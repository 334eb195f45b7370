# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate elementwise functions of a tensor, many of which convert integers to floats."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import dtype_of

from .aten_call import AtenCall, Converter, constant

_op = relax.op


def _unary(make: Callable[[Expr], Expr], computes_in_floats: bool = False) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x = call["self"]
        return call.emit(make(call.cast(x, call.dtype) if computes_in_floats else x))

    return convert


def wide(make: Callable[..., Expr]) -> Converter:
    """Return a converter for a function without half-precision kernels in TVM."""
    return lambda call: call.in_float32(make, *call.operands())


def _classified(make: Callable[[Expr], Expr]) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x = call["self"]
        is_wide = dtype_of(x) in ("float32", "float64")
        return call.emit(make(x if is_wide else call.cast(x, "float32")))

    return convert


def _sign(call: AtenCall) -> Expr:
    """Return the sign, with zero for NaN, unlike ``R.sign``."""
    x = call["self"]
    sign = call.emit(_op.sign(x))
    if "float" not in dtype_of(x):
        return sign
    number = call.emit(_op.equal(x, x))
    return call.emit(_op.where(number, sign, constant(0.0, dtype_of(x))))


def _gelu(call: AtenCall) -> Expr:
    make = _op.nn.gelu_tanh if call["approximate"] == "tanh" else _op.nn.gelu
    return call.emit(make(call["self"]))


def _scaled_log(base: float) -> Converter:
    def convert(call: AtenCall) -> Expr:
        logarithm = call.emit(_op.log(call.cast(call["self"], call.dtype)))
        return call.scaled(logarithm, 1 / math.log(base))

    return convert


def _log1p(call: AtenCall) -> Expr:
    x = call.cast(call["self"], call.dtype)
    return call.emit(_op.log(call.emit(_op.add(x, constant(1.0, call.dtype)))))


def _expm1(call: AtenCall) -> Expr:
    power = call.emit(_op.exp(call.cast(call["self"], call.dtype)))
    return call.emit(_op.subtract(power, constant(1.0, call.dtype)))


def _reciprocal(call: AtenCall) -> Expr:
    x = call.cast(call["self"], call.dtype)
    return call.emit(_op.divide(constant(1.0, call.dtype), x))


def _leaky_relu(call: AtenCall) -> Expr:
    return call.emit(_op.nn.leakyrelu(call["self"], float(call["negative_slope"])))


def _softplus(call: AtenCall) -> Expr:
    return call.emit(_op.nn.softplus(call["self"], float(call["beta"]), float(call["threshold"])))


def _elu(call: AtenCall) -> Expr:
    x, dtype = call["self"], call.dtype
    alpha, scale, inner = (float(call[name]) for name in ("alpha", "scale", "input_scale"))
    power = call.emit(_op.exp(call.scaled(x, inner)))
    below = call.scaled(call.emit(_op.subtract(power, constant(1.0, dtype))), alpha * scale)
    positive = call.emit(_op.greater(x, constant(0.0, dtype)))
    return call.emit(_op.where(positive, call.scaled(x, scale), below))


def _hard_sigmoid(call: AtenCall) -> Expr:
    dtype = call.dtype
    moved = call.emit(_op.add(call["self"], constant(3.0, dtype)))
    inside = call.emit(_op.maximum(moved, constant(0.0, dtype)))
    inside = call.emit(_op.minimum(inside, constant(6.0, dtype)))
    return call.scaled(inside, 1 / 6)


_FLOATS = ("exp", "log", "sin", "cos", "sqrt", "rsqrt", "tanh", "sigmoid", "erf")
_OF_SAME_TYPE, _CLASSES = ("abs", "ceil", "floor", "round", "trunc"), ("isnan", "isinf", "isfinite")
_WIDE = ("tan", "sinh", "cosh", "asin", "acos", "atan")

CONVERTERS: dict[str, Converter] = {
    **{f"{name}.default": _unary(getattr(_op, name), True) for name in _FLOATS},
    **{f"{name}.default": wide(getattr(_op, name)) for name in _WIDE},
    **{f"{name}.default": _unary(getattr(_op, name)) for name in _OF_SAME_TYPE},
    **{f"{name}.default": _classified(getattr(_op, name)) for name in _CLASSES},
    **{f"{name}.default": _unary(getattr(_op.nn, name)) for name in ("relu", "silu")},
    "neg.default": _unary(_op.negative),
    "sign.default": _sign,
    "gelu.default": _gelu,
    "elu.default": _elu,
    "leaky_relu.default": _leaky_relu,
    "softplus.default": _softplus,
    "hardsigmoid.default": _hard_sigmoid,
    "hardswish.default": lambda call: call.emit(_op.multiply(call["self"], _hard_sigmoid(call))),
    "hardtanh.default": lambda call: call.emit(
        _op.clip(call["self"], float(call["min_val"]), float(call["max_val"]))
    ),
    "log2.default": _scaled_log(2),
    "log10.default": _scaled_log(10),
    "log1p.default": _log1p,
    "expm1.default": _expm1,
    "reciprocal.default": _reciprocal,
}
