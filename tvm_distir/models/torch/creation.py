# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate tensor creation, copies and casts."""

from __future__ import annotations

import math

from tvm import relax

from .aten_call import (
    AtenCall,
    Converter,
    UnsupportedOperator,
    axis_of,
    constant,
    dtype_of,
    shape_of,
)

_op = relax.op


def full_tensor(call: AtenCall, shape: list[int], value: object, dtype: str) -> relax.Expr:
    """Return a tensor of a single value, infinite ones included, which TVM's ``full`` rejects."""
    number = constant(value, dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return call.emit(_op.broadcast_to(number, shape))
    return call.emit(_op.full(shape, number, dtype))


def _fill(value: object) -> Converter:
    return lambda call: full_tensor(call, call["size"], value, call.dtype)


def _fill_like(value: object) -> Converter:
    return lambda call: full_tensor(call, list(shape_of(call["self"])), value, call.dtype)


def _full(call: AtenCall) -> relax.Expr:
    return full_tensor(call, call["size"], call["fill_value"], call.dtype)


def _full_like(call: AtenCall) -> relax.Expr:
    return full_tensor(call, list(shape_of(call["self"])), call["fill_value"], call.dtype)


def _fill_scalar(call: AtenCall) -> relax.Expr:
    return full_tensor(call, list(shape_of(call["self"])), call["value"], call.dtype)


def _fill_tensor(call: AtenCall) -> relax.Expr:
    return call.broadcast(call.cast(call["value"], call.dtype), shape_of(call["self"]))


def _arange(call: AtenCall) -> relax.Expr:
    start = call["start"] if "start" in call.names else 0
    step = call["step"] if "step" in call.names else 1
    if call.dtype in ("int64", "int32", "float32"):
        return call.emit(_op.arange(start, call["end"], step, call.dtype))
    return call.cast(call.emit(_op.arange(start, call["end"], step, "float32")), call.dtype)


def _eye(call: AtenCall) -> relax.Expr:
    n = call["n"]
    return call.emit(_op.eye(n, call["m"] if "m" in call.names else n, 0, call.dtype))


def _same(call: AtenCall) -> relax.Expr:
    return call["self"]


def _cast(call: AtenCall) -> relax.Expr:
    return call.cast(call["self"], call.dtype)


def _copied(call: AtenCall) -> relax.Expr:
    """Return the value that ``copy_(self, src)`` leaves in ``self``."""
    return call.broadcast(call.cast(call["src"], call.dtype), shape_of(call["self"]))


def _dropout(call: AtenCall) -> relax.Expr:
    """Return the input, as the model is exported for inference."""
    x = call[call.names[0]]
    if call["train"] is not False and call["p"]:
        raise UnsupportedOperator("dropout of a model in training mode")
    return x if len(call.results) == 1 else [x, call.absent(1)]


def _triangle(make: relax.Expr) -> Converter:
    def convert(call: AtenCall) -> relax.Expr:
        x, dtype = call["self"], call.dtype
        if dtype != "bool":
            return call.emit(make(x, call["diagonal"]))
        return call.cast(call.emit(make(call.cast(x, "int8"), call["diagonal"])), dtype)

    return convert


def _cumulative(make: relax.Expr) -> Converter:
    """Return a cumulative op whose integers and bools are int64 as in torch, unlike in TVM."""

    def convert(call: AtenCall) -> relax.Expr:
        x = call.cast(call["self"], call.dtype)
        if not shape_of(x):
            return x
        return call.emit(make(x, axis_of(call["dim"], len(shape_of(x))), dtype_of(x)))

    return convert


CONVERTERS: dict[str, Converter] = {
    "full.default": _full,
    "new_full.default": _full,
    "full_like.default": _full_like,
    "fill.Scalar": _fill_scalar,
    "fill.Tensor": _fill_tensor,
    "zeros.default": _fill(0),
    "ones.default": _fill(1),
    "new_zeros.default": _fill(0),
    "new_ones.default": _fill(1),
    "empty.memory_format": _fill(0),
    "new_empty.default": _fill(0),
    "empty_permuted.default": _fill(0),
    "empty_like.default": _fill_like(0),
    "zeros_like.default": _fill_like(0),
    "ones_like.default": _fill_like(1),
    "scalar_tensor.default": lambda call: constant(call["s"], call.dtype),
    "arange.default": _arange,
    "arange.start": _arange,
    "arange.start_step": _arange,
    "eye.default": _eye,
    "eye.m": _eye,
    "clone.default": _same,
    "alias.default": _same,
    "detach.default": _same,
    "contiguous.default": _same,
    "lift_fresh_copy.default": _same,
    "_to_copy.default": _cast,
    "to.dtype": _cast,
    "to.dtype_layout": _cast,
    "to.device": _cast,
    "to.other": _cast,
    "type_as.default": _cast,
    "copy.default": _copied,
    "dropout.default": _dropout,
    "native_dropout.default": _dropout,
    "tril.default": _triangle(_op.tril),
    "triu.default": _triangle(_op.triu),
    "cumsum.default": _cumulative(_op.cumsum),
    "cumprod.default": _cumulative(_op.cumprod),
}
