# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``argmax`` and ``argmin`` that find the first NaN, and an infinity among infinities.

In C++, the combination and the identity of ``MakeArgmaxReducer`` (and likewise of
``MakeArgminReducer``, with ``<`` and a positive infinity) in ``include/tvm/topi/reduction.h``::

    // fcombine: a NaN exceeds every number, and equals a NaN
    auto is_nan = [] (PrimExpr value) {
      return value.ty().MatchesCode(DLDataTypeCode::kDLFloat) ? tvm::isnan(value) : Bool(false);
    };
    auto is_bigger = lhs_val > rhs_val || (is_nan(lhs_val) && !is_nan(rhs_val));
    auto is_same = lhs_val == rhs_val || (is_nan(lhs_val) && is_nan(rhs_val));

    // fidentity: a place that is behind every other, and a value that exceeds none
    bool is_float = types[1].MatchesCode(DLDataTypeCode::kDLFloat);
    result.push_back(select_last_index ? tirx::MakeConst(types[0], -1) : tvm::max_value(types[0]));
    result.push_back(is_float ? tvm::neg(tvm::infinity(types[1])) : tvm::min_value(types[1]));

The lambda of the identity captures ``select_last_index`` by value. Schedules know reductions by
their structure: ``ReducerRegistry`` in ``src/s_tir/schedule/primitive/reduction.cc`` takes the same
combination and identity. This module has the same definitions in TE, for the first place, and
registers them for the operators of Relax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import ir, relax, te, tirx

LEVEL = 11  # above the 10 that `register_legalize` uses
Pair = tuple[ir.Expr, ir.Expr]  # a place and a value


def _is_float(dtype: str) -> bool:
    return "float" in str(dtype)


def _is_nan(value: ir.Expr) -> ir.Expr:
    if not _is_float(value.ty.dtype):
        return tirx.const(False, "bool")
    narrow = int(value.ty.dtype.bits) <= 16  # not all targets have the intrinsic for these
    return tirx.isnan(tirx.Cast("float32", value) if narrow else value)


def _reducer(is_max: bool) -> Callable[..., Any]:
    """Return the reducer of pairs that keeps the greater (or lesser) value, and its place."""

    def combine(lhs: Pair, rhs: Pair) -> Pair:
        """Return the pair that is kept; of equal values, that of the lower place."""
        (place, value), (other_place, other) = lhs, rhs
        exceeds = value > other if is_max else value < other
        is_beyond = tirx.any(exceeds, tirx.all(_is_nan(value), tirx.Not(_is_nan(other))))
        is_same = tirx.any(value.equal(other), tirx.all(_is_nan(value), _is_nan(other)))
        is_kept = tirx.any(is_beyond, tirx.all(is_same, place < other_place))
        return tirx.Select(is_kept, place, other_place), tirx.Select(is_kept, value, other)

    def identity(place_type: str, value_type: str) -> Pair:
        """Return a place behind all others, and a value that exceeds none."""
        if _is_float(value_type):
            value = tirx.const(float("-inf" if is_max else "inf"), value_type)
        else:
            value = (tirx.min_value if is_max else tirx.max_value)(value_type)
        return tirx.max_value(place_type), value

    return te.comm_reducer(combine, identity, name="argmax" if is_max else "argmin")


def _search(is_max: bool, x: te.Tensor, axis: int | None, keepdims: bool) -> te.Tensor:
    """Return the places of the extremes along a dim, or of the whole tensor in row-major order."""
    ndim, name = len(x.shape), "argmax" if is_max else "argmin"
    dims = list(range(ndim)) if axis is None else [int(axis) % ndim]
    loops = {d: te.reduce_axis((0, x.shape[d]), f"k{d}") for d in dims}
    kept = [1 if d in loops else n for d, n in enumerate(x.shape) if keepdims or d not in loops]
    reducer = _reducer(is_max)

    def element(*indices: tirx.Var) -> tuple[ir.Expr, ...]:
        outer = iter(i for d, i in enumerate(indices) if not (keepdims and d in loops))
        place = tirx.const(0, "int64")
        for dim, loop in loops.items():
            place = place * x.shape[dim] + loop.var
        entry = x(*[loops[d].var if d in loops else next(outer) for d in range(ndim)])
        return reducer((tirx.Cast("int64", place), entry), axis=list(loops.values()))

    places, _ = te.compute(kept, element, name=f"{name}_pairs")
    return te.compute(kept, lambda *i: places(*i), name=name)


def _legalization(is_max: bool) -> Callable[..., relax.Expr]:
    """Return a legalization by these definitions."""

    def compute(x: te.Tensor, axis: int | None, keepdims: bool) -> te.Tensor:
        return _search(is_max, x, axis, keepdims)

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attrs = call.attrs
        return builder.call_te(compute, call.args[0], attrs.axis, attrs.keepdims)

    return legalize


def install() -> None:
    """Legalize the operators of Relax by these definitions."""
    for name, is_max in {"relax.argmax": True, "relax.argmin": False}.items():
        tvm.ir.register_op_attr(name, "FLegalize", _legalization(is_max), level=LEVEL)
