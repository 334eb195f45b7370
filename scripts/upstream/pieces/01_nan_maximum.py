# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima of floats that keep NaN, and begin with an infinity.

In C++, two functions of ``src/target/llvm/codegen_llvm.cc`` keep NaN in every maximum and minimum;
of equal operands the second is given, as before::

    // CodeGenLLVM::VisitExpr_(const MaxNode*), and likewise MinNode with CreateLT
    PrimType dtype(op->a.ty()->dtype);
    llvm::Value* is_first = CreateGT(dtype, a, b);
    if (dtype.MatchesCode(DLDataTypeCode::kDLFloat)) {
      is_first = builder_->CreateOr(is_first, builder_->CreateFCmpUNO(a, a));
    }
    return builder_->CreateSelect(is_first, a, b);

A second change, of the reductions ``max`` and ``min`` in ``src/tirx/op/op.cc``, lets them begin
with an infinity. Schedules know reductions by their structure: ``ReducerRegistry`` in
``src/s_tir/schedule/primitive/reduction.cc`` takes the same identity::

    // max(source, rdom, init, span), and likewise min with infinity and max_value
    bool is_float = source.ty().MatchesCode(DLDataTypeCode::kDLFloat);
    PrimExpr identity_element =
        is_float ? neg(infinity(source.ty(), span), span) : min_value(source.ty(), span);

This module has the same definitions in TE, and registers them for the operators of Relax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import ir, relax, te, tirx, topi

LEVEL = 11  # above the 10 that `register_legalize` uses


def _is_float(value: ir.Expr | te.Tensor) -> bool:
    return "float" in str(value.dtype if isinstance(value, te.Tensor) else value.ty.dtype)


def _is_nan(value: ir.Expr) -> ir.Expr:
    narrow = int(value.ty.dtype.bits) <= 16  # not all targets have the intrinsic for these
    return tirx.isnan(tirx.Cast("float32", value) if narrow else value)


def greater(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Return the greater of two scalars; NaN if either is NaN."""
    return tirx.Select(tirx.any(a > b, _is_nan(a)), a, b) if _is_float(a) else te.max(a, b)


def less(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Return the lesser of two scalars; NaN if either is NaN."""
    return tirx.Select(tirx.any(a < b, _is_nan(a)), a, b) if _is_float(a) else te.min(a, b)


def _infinity(dtype: str, sign: int) -> ir.Expr:
    return tirx.const(sign * float("inf"), dtype)


_max = te.comm_reducer(greater, lambda dtype: _infinity(dtype, -1), name="max")
_min = te.comm_reducer(less, lambda dtype: _infinity(dtype, 1), name="min")


def _reduction(reducer: Any, standard: Callable[..., te.Tensor]) -> Callable[..., relax.Expr]:
    """Return a legalization that reduces floats by the reducer, and integers as TOPI does."""

    def compute(x: te.Tensor, axis: list[int] | None, keepdims: bool) -> te.Tensor:
        if not _is_float(x):
            return standard(x, axis, keepdims)
        ndim = len(x.shape)
        dims = list(range(ndim)) if axis is None else [int(d) % ndim for d in axis]
        loops = {d: te.reduce_axis((0, x.shape[d]), f"k{d}") for d in dims}
        kept = [1 if d in loops else n for d, n in enumerate(x.shape) if keepdims or d not in loops]

        def element(*indices: tirx.Var) -> ir.Expr:
            outer = iter(i for d, i in enumerate(indices) if not (keepdims and d in loops))
            return reducer(
                x(*[loops[d].var if d in loops else next(outer) for d in range(ndim)]),
                axis=list(loops.values()),
            )

        return te.compute(kept, element, name=standard.__name__)

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attrs = call.attrs
        return builder.call_te(compute, call.args[0], attrs.axis, attrs.keepdims)

    return legalize


def _binary(combine: Callable[..., ir.Expr]) -> Callable[..., relax.Expr]:
    """Return a legalization of a binary operator; operands broadcast."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        shape = topi.add(a, b).shape
        a, b = topi.broadcast_to(a, shape), topi.broadcast_to(b, shape)
        return te.compute(shape, lambda *i: combine(a(*i), b(*i)), name=combine.__name__)

    return lambda builder, call: builder.call_te(compute, *call.args)


def _relu(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: greater(x(*i), tirx.const(0, x.dtype)), name="relu")


def install() -> None:
    """Legalize the operators of Relax by these definitions."""
    legalizations = {
        "relax.max": _reduction(_max, topi.max),
        "relax.min": _reduction(_min, topi.min),
        "relax.maximum": _binary(greater),
        "relax.minimum": _binary(less),
        "relax.nn.relu": lambda builder, call: builder.call_te(_relu, call.args[0]),
    }
    for name, legalize in legalizations.items():
        tvm.ir.register_op_attr(name, "FLegalize", legalize, level=LEVEL)
