# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate tensor creation, copies and casts."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of

from .aten_call import AtenCall, Converter, constant

_op = relax.op


def full_tensor(call: AtenCall, shape: list[int], value: object, dtype: str) -> Expr:
    """Return a tensor of a single value, infinite ones included, which TVM's ``full`` rejects."""
    number = constant(value, dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return call.emit(_op.broadcast_to(number, shape))
    return call.emit(_op.full(shape, number, dtype))


def _filled(value: float | str) -> Converter:
    """Return a converter to a tensor of a number, or of the argument of a name."""

    def convert(call: AtenCall) -> Expr:
        shape = call["size"] if "size" in call.names else list(shape_of(call["self"]))
        number = call[value] if isinstance(value, str) else value
        return full_tensor(call, shape, number, call.dtype)

    return convert


def _fill_tensor(call: AtenCall) -> Expr:
    return call.broadcast(call.cast(call["value"], call.dtype), shape_of(call["self"]))


def _arange(call: AtenCall) -> Expr:
    start = call["start"] if "start" in call.names else 0
    step = call["step"] if "step" in call.names else 1
    if step < 0:  # TVM infers a wrong size
        count = int(call.results[0].shape[0])
        positions = call.cast(call.emit(_op.arange(0, count, 1, "int64")), call.dtype)
        return call.emit(_op.add(call.scaled(positions, step), constant(start, call.dtype)))
    if call.dtype in ("int64", "int32", "float32"):
        return call.emit(_op.arange(start, call["end"], step, call.dtype))
    return call.cast(call.emit(_op.arange(start, call["end"], step, "float32")), call.dtype)


def _eye(call: AtenCall) -> Expr:
    n = call["n"]
    rows, columns = (
        call.emit(_op.arange(0, size, 1, "int64"))
        for size in (n, call["m"] if "m" in call.names else n)
    )
    equal = call.emit(_op.equal(call.reshaped(rows, (n, 1)), columns))
    return call.cast(equal, call.dtype)


def _same(call: AtenCall) -> Expr:
    return call["self"]


def _cast(call: AtenCall) -> Expr:
    return call.cast(call["self"], call.dtype)


def _copied(call: AtenCall) -> Expr:
    """Return the value that ``copy_(self, src)`` leaves in ``self``."""
    return call.broadcast(call.cast(call["src"], call.dtype), shape_of(call["self"]))


def _dropout(call: AtenCall) -> Expr:
    """Return the input, as the model is exported for inference."""
    x = call[call.names[0]]
    if call["train"] is not False and call["p"]:
        raise Unsupported("dropout of a model in training mode")
    return x if len(call.results) == 1 else [x, call.absent(1)]


def _triangle(make: Expr) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x, dtype = call["self"], call.dtype
        if dtype != "bool":
            return call.emit(make(x, call["diagonal"]))
        return call.cast(call.emit(make(call.cast(x, "int8"), call["diagonal"])), dtype)

    return convert


def _cumulative(make: Expr) -> Converter:
    """Return a cumulative op whose integers and bools are int64 as in torch, unlike in TVM."""

    def convert(call: AtenCall) -> Expr:
        x = call.cast(call["self"], call.dtype)
        return x if not shape_of(x) else call.emit(make(x, call.axis, dtype_of(x)))

    return convert


CONVERTERS: dict[str, Converter] = by_name(
    (_filled("fill_value"), "full.default new_full.default full_like.default"),
    (_filled("value"), "fill.Scalar"),
    (_fill_tensor, "fill.Tensor"),
    (_filled(0), "zeros.default new_zeros.default zeros_like.default empty_permuted.default"),
    (_filled(0), "empty.memory_format new_empty.default empty_like.default"),
    (_filled(1), "ones.default new_ones.default ones_like.default"),
    (lambda call: constant(call["s"], call.dtype), "scalar_tensor.default"),
    (_arange, "arange.default arange.start arange.start_step"),
    (_eye, "eye.default eye.m"),
    (
        _same,
        "clone.default alias.default detach.default contiguous.default lift_fresh_copy.default",
    ),
    (_cast, "_to_copy.default to.dtype to.dtype_layout to.device to.other type_as.default"),
    (_copied, "copy.default"),
    (_dropout, "dropout.default native_dropout.default"),
    (_triangle(_op.tril), "tril.default"),
    (_triangle(_op.triu), "triu.default"),
    (_cumulative(_op.cumsum), "cumsum.default"),
    (_cumulative(_op.cumprod), "cumprod.default"),
)
