# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate elementwise operators on two tensors, or on a tensor and a number.

TVM's importer gives a scalar the type of the tensor (``ints * 0.5`` multiplied by 0) and drops the
factor ``alpha`` of sums; here the type of the result, or of the comparison, is that of torch.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import Unsupported, dtype_of

from .aten_call import AtenCall, Converter, constant, is_float
from .elementwise import wide

_op = relax.op


def _binary(make: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda call: call.emit(make(*call.operands()))


def _compared(make: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda call: call.emit(make(*call.operands(call.common_dtype("self", "other"))))


def _scaled_sum(make: Callable[[Expr, Expr], Expr]) -> Converter:
    """Return ``self + alpha * other``, or a difference."""

    def convert(call: AtenCall) -> Expr:
        a, b = call.operands()
        return call.emit(make(a, call.scaled(b, call["alpha"])))

    return convert


def _reversed_difference(call: AtenCall) -> Expr:
    """Return ``other - alpha * self``."""
    a, b = call.operands()
    return call.emit(_op.subtract(b, call.scaled(a, call["alpha"])))


def _logical(make: Callable[..., Expr]) -> Converter:
    return lambda call: call.emit(make(*call.operands("bool")))


def _bitwise(
    make: Callable[[Expr, Expr], Expr], of_bools: Callable[[Expr, Expr], Expr]
) -> Converter:
    """Return a converter with a separate op for bools."""
    return lambda call: call.emit((of_bools if call.dtype == "bool" else make)(*call.operands()))


def _bitwise_not(call: AtenCall) -> Expr:
    x = call["self"]
    return call.emit(_op.logical_not(x) if dtype_of(x) == "bool" else _op.bitwise_not(x))


def _divide_rounded(call: AtenCall) -> Expr:
    a, b = call.operands()
    mode = call["rounding_mode"]
    if mode == "floor":
        return call.emit(_op.floor_divide(a, b))
    quotient = call.emit(_op.divide(a, b))  # of integers it is truncated
    return call.emit(_op.trunc(quotient)) if mode and is_float(call.dtype) else quotient


def _power(call: AtenCall) -> Expr:
    dtype = call.dtype
    base, exponent = (call[name] for name in call.names)
    if isinstance(exponent, (int, float)) and exponent == 2:
        base = call.cast(base, dtype)
        return call.emit(_op.multiply(base, base))
    if is_float(dtype):
        return call.in_float32(_op.power, call.cast(base, dtype), call.cast(exponent, dtype))
    if isinstance(exponent, int) and not isinstance(base, (int, float)) and exponent >= 0:
        result = constant(1, dtype)
        for _ in range(exponent):
            result = call.emit(_op.multiply(result, call.cast(base, dtype)))
        return call.broadcast(result, list(call.results[0].shape))
    raise Unsupported("a power of integers with a tensor as exponent")


def _clamp(call: AtenCall) -> Expr:
    low, high = (call[name] if name in call.names else None for name in ("min", "max"))
    x, dtype = call.cast(call["self"], call.dtype), call.dtype
    if low is not None:
        x = call.emit(_op.maximum(x, call.cast(low, dtype)))
    return x if high is None else call.emit(_op.minimum(x, call.cast(high, dtype)))


def _where(call: AtenCall) -> Expr:
    a, b = call.operands()
    return call.emit(_op.where(call.cast(call["condition"], "bool"), a, b))


def _masked_fill(call: AtenCall) -> Expr:
    x = call["self"]
    return call.emit(_op.where(call["mask"], call.cast(call["value"], dtype_of(x)), x))


_COMPARED = {
    "eq": _op.equal,
    "ne": _op.not_equal,
    "lt": _op.less,
    "le": _op.less_equal,
    "gt": _op.greater,
    "ge": _op.greater_equal,
}
_BITS = {
    "bitwise_and": (_op.bitwise_and, _op.logical_and),
    "__and__": (_op.bitwise_and, _op.logical_and),
    "bitwise_or": (_op.bitwise_or, _op.logical_or),
    "__or__": (_op.bitwise_or, _op.logical_or),
    "bitwise_xor": (_op.bitwise_xor, _op.logical_xor),
}

CONVERTERS: dict[str, Converter] = {
    **{
        f"{name}.{kind}": _compared(make)
        for name, make in _COMPARED.items()
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"{name}.{kind}": _bitwise(*pair)
        for name, pair in _BITS.items()
        for kind in ("Tensor", "Scalar")
    },
    **by_name(
        (_bitwise_not, "bitwise_not.default"),
        (_logical(_op.logical_not), "logical_not.default"),
        (_logical(_op.logical_and), "logical_and.default"),
        (_logical(_op.logical_or), "logical_or.default"),
        (_logical(_op.logical_xor), "logical_xor.default"),
        (_scaled_sum(_op.add), "add.Tensor add.Scalar"),
        (_scaled_sum(_op.subtract), "sub.Tensor sub.Scalar"),
        (_reversed_difference, "rsub.Tensor rsub.Scalar"),
        (_bitwise(_op.multiply, _op.logical_and), "mul.Tensor mul.Scalar"),
        (_binary(_op.divide), "div.Tensor div.Scalar"),
        (_divide_rounded, "div.Tensor_mode div.Scalar_mode"),
        (_binary(_op.floor_divide), "floor_divide.default"),
        (_binary(_op.floor_mod), "remainder.Tensor remainder.Scalar"),
        (_binary(_op.maximum), "maximum.default max.other"),
        (_binary(_op.minimum), "minimum.default min.other"),
        (wide(_op.atan2), "atan2.default"),
        (_power, "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar"),
        (_clamp, "clamp.default clamp.Tensor clamp_min.default clamp_max.default"),
        (_where, "where.self where.ScalarOther where.ScalarSelf where.Scalar"),
        (_masked_fill, "masked_fill.Scalar masked_fill.Tensor"),
    ),
}
