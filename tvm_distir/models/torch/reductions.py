# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate reductions, searches and sorts.

Sums and means of half precision run in float32, as those of torch do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import HALVES, Unsupported, dtype_of, shape_of

from .aten_call import AtenCall, Converter, axes_of, axis_of, constant

_op = relax.op


def _axes(call: AtenCall, x: Expr) -> list[int]:
    return axes_of(call["dim"] if "dim" in call.names else None, len(shape_of(x)))


def _keeps(call: AtenCall) -> bool:
    return bool(call["keepdim"]) if "keepdim" in call.names else False


def _sum_of(make: Callable[..., Expr]) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x = call.cast(call["self"], call.dtype)
        axes, keeps = _axes(call, x), _keeps(call)
        return call.in_float32(lambda value: make(value, axes, keeps), x) if axes else x

    return convert


def _extreme(make: Callable[..., Expr]) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x = call["self"]
        axes = _axes(call, x)
        return call.emit(make(x, axes, _keeps(call))) if axes else x

    return convert


def _quantifier(make: Callable[..., Expr]) -> Converter:
    """Translate ``any`` and ``all`` to the maximum or minimum of bytes."""

    def convert(call: AtenCall) -> Expr:
        x = call["self"]
        if dtype_of(x) != "bool":
            x = call.emit(_op.not_equal(x, constant(0, dtype_of(x))))
        axes = _axes(call, x)
        reduced = call.emit(make(call.cast(x, "int8"), axes, _keeps(call))) if axes else x
        return call.cast(reduced, "bool")

    return convert


def _variance(call: AtenCall, x: Expr, axes: list[int]) -> Expr:
    """Return the variance of float32 values, with torch's correction (1 by default)."""
    correction = 1 if call["correction"] is None else call["correction"]
    count = math.prod(shape_of(x)[axis] for axis in axes)
    spread = call.emit(_op.variance(x, axes, _keeps(call)))
    if correction == 0:
        return spread
    scale = count / (count - correction) if count > correction else math.nan
    return call.emit(_op.multiply(spread, constant(scale, dtype_of(x))))


def _var(call: AtenCall) -> Expr:
    x = call["self"]
    return call.cast(_variance(call, _wide(call, x), _axes(call, x)), call.dtype)


def _var_mean(call: AtenCall) -> Expr:
    x = call["self"]
    wide, axes = _wide(call, x), _axes(call, x)
    mean = call.emit(_op.mean(wide, axes, _keeps(call)))
    return [call.cast(v, call.dtype) for v in (_variance(call, wide, axes), mean)]


def _vector_norm(call: AtenCall) -> Expr:
    x, order = call.cast(call["self"], call.dtype), call["ord"]
    axes, keeps = _axes(call, x), _keeps(call)
    if order == 2:
        squares = call.emit(_op.multiply(x, x))
        return call.emit(_op.sqrt(call.in_float32(lambda v: _op.sum(v, axes, keeps), squares)))
    size = call.emit(_op.abs(x))
    if order == 1:
        return call.in_float32(lambda v: _op.sum(v, axes, keeps), size)
    if order == math.inf:
        return call.emit(_op.max(size, axes, keeps))
    raise Unsupported(f"the norm of order {order}")


def _wide(call: AtenCall, x: Expr) -> Expr:
    """Cast to a type that TVM's sorts order; they silently treat bfloat16 as integers."""
    return call.cast(x, "float32") if dtype_of(x) in HALVES else x


def _position(make: Callable[..., Expr]) -> Converter:
    """Translate ``argmax`` and ``argmin``."""

    def convert(call: AtenCall) -> Expr:
        x, dim = call["self"], call["dim"]
        axis = None if dim is None else axis_of(dim, len(shape_of(x)))
        return call.emit(make(_wide(call, x), axis, _keeps(call)))

    return convert


def _extreme_and_position(value: Callable[..., Expr], position: Callable[..., Expr]) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x, keeps = call["self"], _keeps(call)
        axis = call.axis
        extreme = call.emit(value(x, [axis], keeps))
        if not call.is_read(1):
            return [extreme, call.absent(1)]
        return [extreme, call.emit(position(_wide(call, x), axis, keeps))]

    return convert


def _top(call: AtenCall) -> Expr:
    x, count, largest = call["self"], int(call["k"]), bool(call["largest"])
    pair = call.emit(_op.topk(_wide(call, x), count, call.axis, "both", largest, "int64"))
    values, positions = (call.emit(relax.TupleGetItem(pair, i)) for i in (0, 1))
    return [call.cast(values, dtype_of(x)), positions]


def _order(call: AtenCall, x: Expr) -> Expr:
    return call.emit(_op.argsort(_wide(call, x), call.axis, bool(call["descending"]), "int64"))


def _sort(call: AtenCall) -> Expr:
    x = call["self"]
    order = _order(call, x)
    return [call.emit(_op.gather_elements(x, order, call.axis)), order]


def _softmax(make: Callable[..., Expr]) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x = call["self"]
        if dtype_of(x) not in HALVES:
            x = call.cast(x, call.dtype)
        return call.cast(call.emit(make(_wide(call, x), call.axis)), call.dtype)

    return convert


_KINDS = ("default", "dim", "dims", "dim_IntList", "dim_int")

CONVERTERS: dict[str, Converter] = {
    **{f"sum.{kind}": _sum_of(_op.sum) for kind in _KINDS},
    **{f"mean.{kind}": _sum_of(_op.mean) for kind in _KINDS},
    **{f"prod.{kind}": _sum_of(_op.prod) for kind in _KINDS},
    **{f"any.{kind}": _quantifier(_op.max) for kind in _KINDS},
    **{f"all.{kind}": _quantifier(_op.min) for kind in _KINDS},
    **by_name(
        (_extreme(_op.max), "amax.default max.default"),
        (_extreme(_op.min), "amin.default min.default"),
        (_extreme_and_position(_op.max, _op.argmax), "max.dim"),
        (_extreme_and_position(_op.min, _op.argmin), "min.dim"),
        (_position(_op.argmax), "argmax.default"),
        (_position(_op.argmin), "argmin.default"),
        (_var, "var.correction"),
        (_var_mean, "var_mean.correction"),
        (_vector_norm, "linalg_vector_norm.default"),
        (_top, "topk.default"),
        (_sort, "sort.default sort.stable"),
        (lambda call: _order(call, call["self"]), "argsort.default"),
        (_softmax(_op.nn.softmax), "softmax.int _softmax.default"),
        (_softmax(_op.nn.log_softmax), "log_softmax.int _log_softmax.default"),
    ),
}
