# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate what random numbers of JAX are made by: bits, and the inverse error function."""

from __future__ import annotations

from tvm import te, tirx
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported

from .operation_call import Converter, HloCall
from .translated_values import TranslatedTensor

_BITCAST, _ERF_INV = "stablehlo.bitcast_convert", "chlo.erf_inv"
_WIDTHS = {"bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8}


def _bits(dtype: str) -> int:
    """Return the number of bits of an element."""
    digits = "".join(c for c in dtype if c.isdigit())
    return _WIDTHS.get(dtype) or int(digits or 0)


def _bitcast(call: HloCall) -> TranslatedTensor:
    """Reinterpret elements; wider ones consist of the elements along the last dim, low bits first.

    StableHLO specification, `bitcast_convert`.
    """
    x, dtype = call[0], call.dtype
    if x.dtype == dtype:
        return x
    if "bool" in (x.dtype, dtype):
        raise Unsupported("bits of booleans")
    source, target = _bits(x.dtype), _bits(dtype)
    if source == target:
        shape, make = x.shape, _same_width(dtype)
    elif source < target:
        shape, make = x.shape[:-1], _joined(target // source, source, dtype)
    else:
        shape, make = (*x.shape, source // target), _parted(target, dtype)
    args = [call.write.full(x)]
    return call.write.kernel("bitcast", make, args, shape, dtype, _BITCAST)


def _unsigned(value: Expr) -> Expr:
    """Return the bits of an element as an unsigned integer."""
    kind = f"uint{_bits(str(value.ty.dtype))}"
    return value if str(value.ty.dtype) == kind else tirx.reinterpret(kind, value)


def _from_unsigned(value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else tirx.reinterpret(dtype, value)


def _same_width(dtype: str) -> Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: tirx.reinterpret(dtype, x(*at)), name="bitcast")

    return compute


def _joined(count: int, width: int, dtype: str) -> Expr:
    wide = f"uint{count * width}"

    def compute(x: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> te.Tensor:
            value = tirx.Cast(wide, _unsigned(x(*at, 0)))
            for i in range(1, count):
                part = tirx.Cast(wide, _unsigned(x(*at, i)))
                value = value | (part << tirx.const(i * width, wide))
            return _from_unsigned(value, dtype)

        return te.compute(x.shape[:-1], element, name="bitcast")

    return compute


def _parted(width: int, dtype: str) -> Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        wide = f"uint{_bits(str(x.dtype))}"
        shape = (*x.shape, _bits(str(x.dtype)) // width)

        def element(*at: tirx.Var) -> te.Tensor:
            shift = tirx.Cast(wide, at[-1]) * tirx.const(width, wide)
            part = tirx.Cast(f"uint{width}", _unsigned(x(*at[:-1])) >> shift)
            return _from_unsigned(part, dtype)

        return te.compute(shape, element, name="bitcast")

    return compute


_CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
"""Coefficients of Giles 2012, "Approximating the erfinv function", table 5, single precision."""


def _erf_inv(call: HloCall) -> TranslatedTensor:
    """Compute the inverse error function, by which normal numbers are made of uniform ones."""
    x = call[0]
    if x.dtype != "float32":
        raise Unsupported(f"the inverse error function of {x.dtype}")
    args = [call.write.full(x)]
    return call.write.kernel("erf_inv", _te_erf_inv, args, x.shape, x.dtype, _ERF_INV)


def _te_erf_inv(x: te.Tensor) -> te.Tensor:
    def polynomial(terms: tuple[float, ...], at: tirx.Var) -> te.Tensor:
        value = tirx.const(terms[0], "float32")
        for term in terms[1:]:
            value = value * at + tirx.const(term, "float32")
        return value

    def element(*at: tirx.Var) -> te.Tensor:
        value = x(*at)
        unit, bound = tirx.const(1.0, "float32"), tirx.const(5.0, "float32")
        log = -tirx.log1p(-value * value)
        near = polynomial(_CENTRAL, log - tirx.const(2.5, "float32"))
        far = polynomial(_TAIL, tirx.sqrt(log) - tirx.const(3.0, "float32"))
        infinite = value * tirx.const(float("inf"), "float32")
        inside = value * tirx.Select(log < bound, near, far)
        return tirx.Select(tirx.abs(value) == unit, infinite, inside)

    return te.compute(x.shape, element, name="erf_inv")


CONVERTERS: dict[str, Converter] = {_ERF_INV: _erf_inv, _BITCAST: _bitcast}
