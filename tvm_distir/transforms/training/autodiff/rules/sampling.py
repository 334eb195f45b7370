# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of image sampling at computed positions, and of dequantization."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    abs as abs_op,
)
from tvm.relax.op import (
    add,
    astype,
    broadcast_to,
    clip,
    collapse_sum_to,
    concat,
    equal,
    floor,
    floor_divide,
    floor_mod,
    gather_elements,
    greater_equal,
    less_equal,
    logical_and,
    multiply,
    negative,
    reshape,
    scatter_elements,
    sign,
    strided_slice,
    subtract,
    where,
    zeros,
)
from tvm.relax.op import round as round_op
from tvm.relax.op import sum as sum_op

from .registry import Gradients, constant_like, refuse, register_gradient, shape_of


def _source(
    raw: Var, extent: int, ends: bool, mode: str, builder: BlockBuilder
) -> tuple[Var, Expr]:
    """Return the rows of coordinates from -1 to 1, and their derivative."""
    slope = constant_like((extent - 1 if ends else extent) / 2, raw)
    shift = constant_like(0.0 if ends else 0.5, raw)
    at = subtract(multiply(add(raw, constant_like(1.0, raw)), slope), shift)
    at = builder.emit(at)
    if mode == "zeros":
        return at, slope
    if mode == "reflection":
        low = constant_like(0.0 if ends else -0.5, raw)
        span = constant_like(float(extent - 1 if ends else extent), raw)
        offset = builder.emit(subtract(at, low))
        turns = builder.emit(floor_divide(abs_op(offset), span))
        extra = builder.emit(subtract(abs_op(offset), multiply(turns, span)))
        rest = floor_mod(turns, constant_like(2.0, raw))
        even = builder.emit(equal(rest, constant_like(0.0, raw)))
        at = builder.emit(add(where(even, extra, subtract(span, extra)), low))
        way = where(even, sign(offset), negative(sign(offset)))
        slope = builder.emit(multiply(slope, way))
    inside = logical_and(
        greater_equal(at, constant_like(0.0, raw)),
        less_equal(at, constant_like(float(extent - 1), raw)),
    )
    slope = builder.emit(where(inside, slope, constant_like(0.0, raw)))
    return builder.emit(clip(at, 0.0, float(extent - 1))), slope


def _pixel(
    rows: Var, columns: Var, size: tuple[int, int], shape: Any, builder: BlockBuilder
) -> tuple[Var, Var]:
    """Return flat pixel indices for all channels, and whether they are in the image."""
    inside: Any = None
    known = []
    for position, n in zip((rows, columns), size, strict=True):
        zero, last = constant_like(0.0, position), constant_like(float(n - 1), position)
        in_range = logical_and(greater_equal(position, zero), less_equal(position, last))
        inside = in_range if inside is None else logical_and(inside, in_range)
        known.append(astype(clip(position, 0.0, float(n - 1)), "int64"))
    flat = add(multiply(known[0], relax.const(size[1], "int64")), known[1])
    valid = builder.emit(astype(inside, str(rows.ty.dtype)))
    return builder.emit(broadcast_to(flat, shape)), valid


@register_gradient("image.grid_sample")
def _grid_sample(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``grid_sample`` with respect to the image and the grid."""
    (data, grid), a = call.args, call.attrs
    method, mode, ends = str(a.method), str(a.padding_mode), bool(a.align_corners)
    if len(shape_of(data)) != 4 or method not in ("bilinear", "nearest"):
        raise refuse(call, "the gradient of sampling is known for two dims, bilinear and nearest")
    n, channels = shape_of(data)[:2]
    height, width = (int(k) for k in shape_of(data)[2:])
    pixels_out = int(shape_of(grid)[2]) * int(shape_of(grid)[3])
    wide = [n, channels, pixels_out]
    flat = builder.emit(reshape(grid, [n, 2, pixels_out]))
    sources = []
    for k, extent in ((1, height), (0, width)):
        raw = builder.emit(strided_slice(flat, [1], [k], [k + 1]))
        sources.append(_source(raw, extent, ends, mode, builder))
    (y, by_y), (x, by_x) = sources
    g = builder.emit(reshape(grad, wide))
    image = builder.emit(zeros([n, channels, height * width], str(data.ty.dtype)))
    unit = constant_like(1.0, x)
    if method == "nearest":
        at = builder.emit(round_op(y)), builder.emit(round_op(x))
        index, valid = _pixel(*at, (height, width), wide, builder)
        image = scatter_elements(image, index, builder.emit(multiply(g, valid)), 2, "add")
        return [reshape(image, data.ty.shape), None]
    pixels = builder.emit(reshape(data, [n, channels, height * width]))
    low, left = builder.emit(floor(y)), builder.emit(floor(x))
    down, right = builder.emit(subtract(y, low)), builder.emit(subtract(x, left))
    slopes: list[Any] = [None, None]
    for bottom in (False, True):
        rows, high = (builder.emit(add(low, unit)), down) if bottom else (low, subtract(unit, down))
        for east in (False, True):
            columns = builder.emit(add(left, unit)) if east else left
            far = right if east else subtract(unit, right)
            index, valid = _pixel(rows, columns, (height, width), wide, builder)
            share = builder.emit(multiply(multiply(g, high), multiply(far, valid)))
            image = builder.emit(scatter_elements(image, index, share, 2, "add"))
            value = multiply(builder.emit(gather_elements(pixels, index, 2)), g)
            value = builder.emit(multiply(sum_op(value, 1, keepdims=True), valid))
            for k, (part, sided) in enumerate(((far, bottom), (high, east))):
                term = multiply(value, part)
                term = builder.emit(term if sided else negative(term))
                slopes[k] = term if slopes[k] is None else builder.emit(add(slopes[k], term))
    by_grid = concat([multiply(slopes[1], by_x), multiply(slopes[0], by_y)], 1)
    return [reshape(image, data.ty.shape), reshape(by_grid, grid.ty.shape)]


@register_gradient("dequantize")
def _dequantize(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``(x - zero) scale`` with respect to the scale and a float zero point."""
    x, scale, zero = call.args
    rank, dtype = len(shape_of(x)), str(scale.ty.dtype)
    axis = int(call.attrs.axis) % rank
    wide = [1] * rank
    if len(shape_of(scale)):
        wide[axis] = shape_of(x)[axis]
    grad = builder.emit(astype(grad, dtype))
    shape = wide if len(shape_of(zero)) else [1] * rank
    shifted = subtract(astype(x, dtype), reshape(astype(zero, dtype), shape))
    by_scale = builder.emit(multiply(grad, shifted))
    gradients = [None, reshape(collapse_sum_to(by_scale, wide), scale.ty.shape), None]
    if "float" in str(zero.ty.dtype):
        by_zero = builder.emit(negative(multiply(grad, reshape(scale, wide))))
        gradients[2] = reshape(collapse_sum_to(by_zero, wide), zero.ty.shape)
    return gradients
