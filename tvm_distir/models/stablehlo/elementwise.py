# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate elementwise operations, without expanding broadcasts of their operands."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.hlo_names import BINARY, CHLO, COMPARISONS, UNARY
from tvm_distir.models.common.translation import HALVES, Unsupported, shape_of

from .operation_call import Converter, HloCall
from .translated_values import Tensors, TranslatedTensor, constant

_op = relax.op
_FOLDED: dict[object, Callable[..., int | bool]] = {
    _op.add: operator.add,
    _op.subtract: operator.sub,
    _op.multiply: operator.mul,
    _op.maximum: max,
    _op.minimum: min,
    _op.where: lambda chosen, a, b: a if chosen else b,
    _op.equal: operator.eq,
    _op.not_equal: operator.ne,
    _op.less: operator.lt,
    _op.less_equal: operator.le,
    _op.greater: operator.gt,
    _op.greater_equal: operator.ge,
}
"""The functions that are computed here where all operands are numbers, since loops count with
them."""
_COMPARED = {word: getattr(_op, name) for name, word in COMPARISONS.items()}


def spread(call: HloCall, make: Callable[..., Expr], values: Tensors) -> TranslatedTensor:
    """Apply an op to operands of the same shape, which may be broadcast."""
    shape = max((value.shape for value in values), key=len)
    numbers = [value.integer for value in values]
    if None not in numbers and make in _FOLDED:
        return TranslatedTensor(constant(_FOLDED[make](*numbers), call.dtype), ())
    parts = [value if value.rows is None else call.write.value(call.write.full(value))
             for value in values]  # fmt: skip
    if len(values) == 1:
        return TranslatedTensor(call.write.emit(make(parts[0].expr)), shape)
    full = any(part.base is None and len(shape_of(part.expr)) == len(shape) for part in parts)
    exprs = [part.expr if part.base is None or not full else part.base for part in parts]
    result = call.write.emit(make(*exprs))
    result_shape = shape_of(result)
    if result_shape and len(result_shape) < len(shape):
        result = call.write.reshape(
            result, [1] * (len(shape) - len(result_shape)) + list(result_shape)
        )
    return TranslatedTensor(result, shape)


def elementwise_converter(make: Callable[..., Expr]) -> Converter:
    """Return a converter of an operation that Relax has."""
    return lambda call: spread(call, make, call.operands)


def _wide(make: Callable[..., Expr]) -> Converter:
    """Return a converter for an op without half-precision kernels in TVM."""

    def convert(call: HloCall) -> TranslatedTensor:
        x = call[0]
        if x.dtype not in HALVES:
            return spread(call, make, [x])
        result = spread(call, make, [converted(call, x, "float32")])
        return result if "is" in make.__name__ else converted(call, result, x.dtype)

    return convert


def _logic(of_bools: Callable[..., Expr], of_bits: Callable[..., Expr]) -> Converter:
    def convert(call: HloCall) -> TranslatedTensor:
        if call.dtype != "bool":
            return spread(call, of_bits, call.operands)
        decided = _decided(of_bools, call.operands)
        return spread(call, of_bools, call.operands) if decided is None else decided

    return convert


def _decided(make: Callable[..., Expr], values: Tensors) -> TranslatedTensor | None:
    """Return the operand that decides a conjunction or disjunction with a number, or None."""
    if make not in (_op.logical_and, _op.logical_or):
        return None
    for value, other in (values, values[::-1]):
        if value.integer is not None:
            decides = bool(value.integer) == (make is _op.logical_or)
            return value if decides else other
    return None


def converted(call: HloCall, value: TranslatedTensor, dtype: str) -> TranslatedTensor:
    """Return a value cast to another type."""
    if value.dtype == dtype:
        return value
    number = value.scalar
    if number is not None:
        return TranslatedTensor(constant(number, dtype), value.shape)
    if dtype == "bool":
        return spread(
            call, _op.not_equal, [value, TranslatedTensor(constant(0, value.dtype), value.shape)]
        )
    return spread(call, lambda x: _op.astype(x, dtype), [value])


def _compare(call: HloCall) -> TranslatedTensor:
    direction = str(call.attribute("comparison_direction"))
    if direction not in _COMPARED:
        raise Unsupported(f'the comparison "{direction}"')
    if call[0].dtype == "bool" and None in [value.integer for value in call.operands]:
        return _compared_bools(call, direction)
    return spread(call, _COMPARED[direction], call.operands)


def _compared_bools(call: HloCall, direction: str) -> TranslatedTensor:
    """Compare bools as numbers, as TVM's kernels require."""
    if direction == "NE":
        return spread(call, _op.logical_xor, call.operands)
    numbers = [converted(call, value, "int8") for value in call.operands]
    return spread(call, _COMPARED[direction], numbers)


def select(call: HloCall) -> TranslatedTensor:
    """Select between two tensors by a mask or a scalar condition."""
    chosen, first, second = call.operands
    if chosen.integer is not None:
        return first if chosen.integer else second
    if not chosen.shape and first.shape:
        chosen = TranslatedTensor(chosen.expr, first.shape)
    return spread(call, _op.where, [chosen, first, second])


def _clamp(call: HloCall) -> TranslatedTensor:
    low, x, high = (
        TranslatedTensor(v.expr, call.shape) if not v.shape else v for v in call.operands
    )
    return spread(call, _op.minimum, [spread(call, _op.maximum, [x, low]), high])


def number(value: float, like: TranslatedTensor) -> TranslatedTensor:
    """Return a constant of the type and shape of another value."""
    return TranslatedTensor(constant(value, like.dtype), like.shape)


def _log_plus_one(call: HloCall) -> TranslatedTensor:
    x = call[0]
    return spread(call, _op.log, [spread(call, _op.add, [x, number(1, x)])])


def _exp_minus_one(call: HloCall) -> TranslatedTensor:
    x = call[0]
    return spread(call, _op.subtract, [spread(call, _op.exp, [x]), number(1, x)])


def _cube_root(call: HloCall) -> TranslatedTensor:
    x = call[0]
    size = spread(call, _op.power, [spread(call, _op.abs, [x]), number(1 / 3, x)])
    return spread(call, _op.multiply, [spread(call, _op.sign, [x]), size])


def _round_away(call: HloCall) -> TranslatedTensor:
    """Round halves away from zero."""
    x = call[0]
    size = spread(call, _op.add, [spread(call, _op.abs, [x]), number(0.5, x)])
    return spread(
        call, _op.multiply, [spread(call, _op.sign, [x]), spread(call, _op.floor, [size])]
    )


def _remainder(call: HloCall) -> TranslatedTensor:
    """Return the remainder with the sign of the dividend."""
    x, y = call.operands
    if "float" not in call.dtype:
        return spread(call, _op.mod, [x, y])
    ratio = spread(call, _op.trunc, [spread(call, _op.divide, [x, y])])
    return spread(call, _op.subtract, [x, spread(call, _op.multiply, [ratio, y])])


def _erfc(call: HloCall) -> TranslatedTensor:
    x = call[0]
    return spread(call, _op.subtract, [number(1, x), spread(call, _op.erf, [x])])


def _shifted(call: HloCall, make: Callable[..., Expr], most: int | None) -> TranslatedTensor:
    """Shift by any number of bits; TVM's shifts are defined below the width only.

    By more bits the result is zero, or that of a shift by ``most`` bits.
    """
    x, count = call.operands
    width = np.iinfo(call.dtype).bits
    known = count.scalar
    if known is not None and 0 <= known < width:
        return spread(call, make, [x, count])
    if known is not None:
        return number(0, x) if most is None else spread(call, make, [x, number(most, x)])
    inside = spread(call, _op.less, [count, number(width, count)])
    if "u" not in call.dtype:
        positive = spread(call, _op.greater_equal, [count, number(0, count)])
        inside = spread(call, _op.logical_and, [inside, positive])
    near = spread(call, _op.where, [inside, count, number(most or 0, count)])
    result = spread(call, make, [x, near])
    return result if most is not None else spread(call, _op.where, [inside, result, number(0, x)])


def _shift_right_arithmetic(call: HloCall) -> TranslatedTensor:
    return _shifted(call, _op.right_shift, np.iinfo(call.dtype).bits - 1)


def _shift_right(call: HloCall) -> TranslatedTensor:
    if not call.dtype.startswith("uint"):
        raise Unsupported("a logical shift of signed integers")
    return _shifted(call, _op.right_shift, None)


def _narrowed(call: HloCall) -> TranslatedTensor:
    precision = str(call.attribute("format", ""))
    exponent, mantissa = (call.attribute(f"{part}_bits") for part in ("exponent", "mantissa"))
    precision = precision or f"e{exponent}m{mantissa}"
    narrow = {"e8m7": "bfloat16", "e5m10": "float16", "e8m23": "float32"}.get(precision)
    if narrow is None:
        raise Unsupported(f"precision reduced to {precision}")
    x = call[0]
    return converted(call, converted(call, x, narrow), x.dtype)


def same(call: HloCall) -> Tensors:
    """Return the operand of a compiler barrier."""
    return call.operands


_PLAIN = {**{theirs: name for name, theirs in UNARY.items()}, **dict(zip(BINARY, BINARY))}

CONVERTERS: dict[str, Converter] = {
    **{
        f"stablehlo.{name}": elementwise_converter(getattr(_op, ours))
        for name, ours in _PLAIN.items()
    },
    **{f"chlo.{name}": _wide(getattr(_op, name)) for name in (*CHLO, "tan")},
    "chlo.square": elementwise_converter(_op.square),
    "chlo.is_inf": _wide(_op.isinf),
    "chlo.erfc": _erfc,
    "stablehlo.tan": _wide(_op.tan),
    "stablehlo.atan2": elementwise_converter(_op.atan2),
    "stablehlo.is_finite": _wide(_op.isfinite),
    "stablehlo.and": _logic(_op.logical_and, _op.bitwise_and),
    "stablehlo.or": _logic(_op.logical_or, _op.bitwise_or),
    "stablehlo.xor": _logic(_op.logical_xor, _op.bitwise_xor),
    "stablehlo.not": _logic(_op.logical_not, _op.bitwise_not),
    "stablehlo.compare": _compare,
    "stablehlo.select": select,
    "stablehlo.clamp": _clamp,
    "stablehlo.convert": lambda call: converted(call, call[0], call.dtype),
    "stablehlo.log_plus_one": _log_plus_one,
    "stablehlo.exponential_minus_one": _exp_minus_one,
    "stablehlo.cbrt": _cube_root,
    "stablehlo.round_nearest_afz": _round_away,
    "stablehlo.remainder": _remainder,
    "stablehlo.shift_left": lambda call: _shifted(call, _op.left_shift, None),
    "stablehlo.shift_right_arithmetic": _shift_right_arithmetic,
    "stablehlo.shift_right_logical": _shift_right,
    "stablehlo.reduce_precision": _narrowed,
    "stablehlo.optimization_barrier": same,
}
