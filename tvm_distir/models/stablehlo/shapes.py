# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate constants, and operations that move elements without changing them."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported, shape_of
from tvm_distir.models.mlir.tree import Dense

from .operation_call import Converter, HloCall
from .translated_values import TranslatedTensor, array_type, constant, is_constant

_op = relax.op


def _constant(call: HloCall) -> TranslatedTensor:
    value = call.attribute("value")
    if not isinstance(value, Dense):
        raise Unsupported("a constant without its elements")
    if value.values.size == 1:
        return TranslatedTensor(constant(value.values.reshape(-1)[0], call.dtype), call.shape)
    array = np.broadcast_to(value.values, call.shape).astype(array_type(call.dtype))
    return TranslatedTensor(relax.const(array, call.dtype), call.shape)


def _iota(call: HloCall) -> TranslatedTensor:
    dim, shape = int(call.attribute("iota_dimension")), call.shape
    line = call.write.counting(shape[dim], call.dtype)
    if len(shape) == 1:
        return TranslatedTensor(line, shape, counts=0)
    sizes = [n if i == dim else 1 for i, n in enumerate(shape)]
    return TranslatedTensor(call.write.reshape(line, sizes), shape, counts=dim)


def _broadcast(call: HloCall) -> TranslatedTensor:
    """Broadcast the operand's dims to their positions, with size 1 elsewhere."""
    x, shape = call[0], call.shape
    dims = call.integers("broadcast_dimensions", [])
    expr = x.expr if x.rows is None else call.write.full(x)
    local_sizes = shape_of(expr)
    if not local_sizes:
        return TranslatedTensor(expr, shape)
    sizes = [1] * len(shape)
    for dim, size in zip(dims, local_sizes):
        sizes[dim] = size
    behind = list(range(len(shape) - len(local_sizes), len(shape)))
    base = expr if dims == behind and len(local_sizes) < len(shape) else None
    expr = call.write.permute(expr, sorted(range(len(dims)), key=dims.__getitem__))
    counts = None if x.counts is None else dims[x.counts]
    if counts is not None and shape[counts] != x.shape[x.counts or 0]:
        counts = None
    return TranslatedTensor(call.write.reshape(expr, sizes), shape, counts=counts, base=base)


def _reshape(call: HloCall) -> TranslatedTensor:
    x = call[0]
    if x.rows is None and not shape_of(x.expr):
        return TranslatedTensor(x.expr, call.shape)
    if x.rows is not None and len(x.rows) == 1 and x.rows[0] is not None:
        x = x.rows[0]
    return TranslatedTensor(call.write.reshape(call.write.full(x), call.shape), call.shape)


def _transpose(call: HloCall) -> TranslatedTensor:
    x, order = call[0], call.integers("permutation")
    if x.rows is None and not shape_of(x.expr):
        return TranslatedTensor(x.expr, call.shape)
    expr = x.expr if x.rows is None else call.write.full(x)
    return TranslatedTensor(call.write.permute(expr, order), call.shape)


def _concatenate(call: HloCall) -> TranslatedTensor:
    parts = [call.full(i) for i in range(len(call.operands)) if 0 not in call[i].shape]
    if len(parts) == 1:
        return call.write.value(parts[0])
    return call.write.value(call.write.emit(_op.concat(parts, int(call.attribute("dimension")))))


def sliced(call: HloCall, begins: list[int], ends: list[int], steps: list[int]) -> TranslatedTensor:
    """Slice the first operand."""
    x = call[0]
    rest = zip(begins[1:], ends[1:], steps[1:], x.shape[1:])
    if begins and steps[0] == 1 and all((b, e, s) == (0, n, 1) for b, e, s, n in rest):
        return call.write.rows_of(x, begins[0], ends[0])
    expr = x.expr if x.rows is None else call.write.full(x)
    sizes = shape_of(expr)
    shape = tuple(-(-(e - b) // s) for b, e, s in zip(begins, ends, steps))
    if sizes:
        single = [n == 1 != size for n, size in zip(sizes, x.shape)]
        begins = [0 if is_kept else n for is_kept, n in zip(single, begins)]
        ends = [1 if is_kept else n for is_kept, n in zip(single, ends)]
        steps = [1 if is_kept else n for is_kept, n in zip(single, steps)]
        expr = call.write.slice(expr, begins, ends, steps)
    return TranslatedTensor(expr, shape)


def _slice(call: HloCall) -> TranslatedTensor:
    """Slice a tensor; a single element of a constant is a number."""
    x, begins = call[0], call.integers("start_indices")
    if x.is_full and is_constant(x.expr) and math.prod(call.shape) == 1:
        element = x.expr.value.numpy()[tuple(begins)]
        return TranslatedTensor(constant(element, x.dtype), call.shape)
    steps = call.integers("strides", [1] * len(x.shape))
    return sliced(call, begins, call.integers("limit_indices"), steps)


def _reverse(call: HloCall) -> TranslatedTensor:
    result = call.full(0)
    for dim in call.integers("dimensions"):
        result = call.write.emit(_op.flip(result, dim))
    return TranslatedTensor(result, call.shape)


def _pad(call: HloCall) -> TranslatedTensor:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inner = (call.integers(name) for name in names)
    fill = call[1].scalar
    if fill is not None:
        return call.write.value(call.write.pad(call.full(0), low, high, inner, float(fill)))
    padded = call.write.pad(call.full(0), low, high, inner, 0.0)
    ones: Expr = relax.const(np.ones(call[0].shape, "bool"), "bool")
    inside = call.write.pad(ones, low, high, inner, 0.0)
    return TranslatedTensor(call.write.emit(_op.where(inside, padded, call[1].expr)), call.shape)


CONVERTERS: dict[str, Converter] = {
    "stablehlo.constant": _constant,
    "chlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.slice": _slice,
    "stablehlo.reverse": _reverse,
    "stablehlo.pad": _pad,
}
