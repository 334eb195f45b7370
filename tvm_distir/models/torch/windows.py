# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate pools over windows, and image resizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import Unsupported, shape_of

from .aten_call import AtenCall, Converter
from .contraction import sizes

_op = relax.op


def _in_batch(call: AtenCall, x: Expr, rank: int, make: Callable[[Expr], Expr]) -> Expr:
    """Apply a function of batches to an image or to a batch of images."""
    if len(shape_of(x)) == rank + 2:
        return call.emit(make(x))
    return call.emit(_op.squeeze(call.emit(make(call.emit(_op.expand_dims(x, 0)))), [0]))


def window(call: AtenCall, rank: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the extent of a pool's windows, and the options that TVM's pools share."""
    kernel = sizes(call["kernel_size"], rank)
    stride = sizes(call["stride"], rank) if call["stride"] else kernel
    return tuple(kernel), {
        "strides": tuple(stride),
        "padding": tuple(sizes(call["padding"], rank) * 2),
        "ceil_mode": bool(call["ceil_mode"]),
    }


def _max_pool(rank: int) -> Converter:
    make = getattr(_op.nn, f"max_pool{rank}d")

    def convert(call: AtenCall) -> Expr:
        kernel, options = window(call, rank)
        dilation = tuple(sizes(call["dilation"], rank))
        pooled = _in_batch(
            call, call["self"], rank, lambda x: make(x, kernel, dilation=dilation, **options)
        )
        return pooled if len(call.results) == 1 else [pooled, call.absent(1)]

    return convert


def _avg_pool(rank: int) -> Converter:
    make = getattr(_op.nn, f"avg_pool{rank}d")

    def convert(call: AtenCall) -> Expr:
        if "divisor_override" in call.names and call["divisor_override"] is not None:
            raise Unsupported("an average pool with divisor_override")
        kernel, options = window(call, rank)
        options["count_include_pad"] = bool(call["count_include_pad"])
        return _in_batch(call, call["self"], rank, lambda x: make(x, kernel, **options))

    return convert


def _adaptive(rank: int) -> Converter:
    make = getattr(_op.nn, f"adaptive_avg_pool{rank}d")

    def convert(call: AtenCall) -> Expr:
        x, out = call["self"], sizes(call["output_size"], rank)
        if all(n == 1 for n in out):  # as a mean, whose sum may be cut
            axes = list(range(len(shape_of(x)) - rank, len(shape_of(x))))
            return call.in_float32(lambda value: _op.mean(value, axes, True), x)
        return _in_batch(call, x, rank, lambda value: make(value, tuple(out)))

    return convert


def _resized(method: str) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x, size = call["input"], call["output_size"]
        shape = shape_of(x)[2:]
        if size is None:
            size = [int(n * f) for n, f in zip(shape, call["scale_factors"], strict=True)]
            exact = all(
                n * f == m for n, f, m in zip(shape, call["scale_factors"], size, strict=True)
            )
            if not exact:
                raise Unsupported("a scale that does not result in an integer size")
        mode = "asymmetric" if method == "nearest_neighbor" else "half_pixel"
        if "align_corners" in call.names and call["align_corners"]:
            mode = "align_corners"
        return call.emit(
            _op.image.resize2d(
                x,
                size=tuple(int(n) for n in size),
                layout="NCHW",
                method=method,
                coordinate_transformation_mode=mode,
                rounding_method="floor" if method == "nearest_neighbor" else "round",
            )
        )

    return convert


CONVERTERS: dict[str, Converter] = by_name(
    (_max_pool(1), "max_pool1d.default"),
    (_max_pool(2), "max_pool2d.default max_pool2d_with_indices.default"),
    (_max_pool(3), "max_pool3d.default max_pool3d_with_indices.default"),
    (_avg_pool(1), "avg_pool1d.default"),
    (_avg_pool(2), "avg_pool2d.default"),
    (_avg_pool(3), "avg_pool3d.default"),
    (_adaptive(1), "adaptive_avg_pool1d.default"),
    (_adaptive(2), "adaptive_avg_pool2d.default _adaptive_avg_pool2d.default"),
    (_adaptive(3), "adaptive_avg_pool3d.default _adaptive_avg_pool3d.default"),
    (_resized("nearest_neighbor"), "upsample_nearest2d.vec"),
    (_resized("linear"), "upsample_bilinear2d.vec"),
)
