# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate reductions over sliding windows, and the gradient of max pools."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of

from .operation_call import Converter, HloCall
from .reductions import applied, is_neutral
from .translated_values import TranslatedTensor, constant

_op = relax.op
_LAYOUTS = {(1, 2): "NHWC", (2, 3): "NCHW"}


@dataclass(frozen=True)
class _Windows:
    """Sizes, strides and dilations per dim, and padding as pairs."""

    sizes: list[int]
    steps: list[int]
    gaps: list[int]
    pads: list[tuple[int, int]]

    @property
    def moved(self) -> list[int]:
        """Return the dims along which a window has more than a single element."""
        rows = enumerate(zip(self.sizes, self.steps, self.pads))
        return [i for i, (size, step, pad) in rows if (size, step, pad) != (1, 1, (0, 0))]

    def pooling(self, dims: tuple[int, int]) -> dict[str, object]:
        """Return the arguments of a Relax pool over two dims."""
        return {
            "pool_size": [self.sizes[i] for i in dims],
            "strides": [self.steps[i] for i in dims],
            "padding": [self.pads[i][side] for side in (0, 1) for i in dims],
            "dilation": [self.gaps[i] for i in dims],
        }


def _windows(call: HloCall) -> _Windows:
    rank = len(call[0].shape)
    ones = [1] * rank
    return _Windows(
        call.integers("window_dimensions", ones),
        call.integers("window_strides", ones),
        call.integers("window_dilations", ones),
        call.pairs("padding", rank),
    )


def _reduce_window(call: HloCall) -> TranslatedTensor:
    if len(call.operands) != 2:
        raise Unsupported("windows over several tensors")
    kind, windows = applied(call.region()), _windows(call)
    if not is_neutral(kind, call[1]):
        raise Unsupported(f"windows whose {kind or 'reduction'} has an unsupported initial value")
    x = call.full(0)
    spaces = [n - 1 for n in call.integers("base_dilations", [1] * len(call[0].shape))]
    if any(spaces):
        flat = [0] * len(spaces)
        x = call.write.pad(x, flat, flat, spaces, float(call[1].scalar))
    cumulative = _cumulative(call, kind, windows, x)
    return TranslatedTensor(
        _pooled(call, kind, windows, x) if cumulative is None else cumulative, call.shape
    )


def _cumulative(call: HloCall, kind: str, windows: _Windows, x: Expr) -> Expr:
    """Translate a window over all preceding or following elements to a cumulative op."""
    if len(windows.moved) != 1 or kind not in ("add", "multiply"):
        return None
    dim = windows.moved[0]
    size = shape_of(x)[dim]
    if (windows.sizes[dim], windows.steps[dim], windows.gaps[dim]) != (size, 1, 1):
        return None
    make = _op.cumsum if kind == "add" else _op.cumprod
    if windows.pads[dim] == (size - 1, 0):
        return call.write.emit(make(x, dim))
    if windows.pads[dim] != (0, size - 1):
        return None
    turned = call.write.emit(make(call.write.emit(_op.flip(x, dim)), dim))
    return call.write.emit(_op.flip(turned, dim))


def _pooled(call: HloCall, kind: str, windows: _Windows, x: Expr) -> Expr:
    """Translate to a pool over two dims, with the pooled dims moved to the end."""
    moved, shape, write = windows.moved, shape_of(x), call.write
    if len(moved) > 2 or kind not in ("add", "maximum", "minimum"):
        raise Unsupported(f"windows over {len(moved)} dims with {kind or 'a custom region'}")
    for dims, layout in _LAYOUTS.items():
        if len(shape) == 4 and set(moved) <= set(dims):
            return _pool(call, kind, x, {**windows.pooling(dims), "layout": layout})
    last = ([i for i in range(len(shape)) if i not in moved] + moved)[-2:]
    if len(shape) < 2:
        raise Unsupported("windows over one dim of a vector")
    order = [i for i in range(len(shape)) if i not in last] + last
    sizes = [shape[i] for i in order]
    flat = write.reshape(write.permute(x, order), [math.prod(sizes[:-2]), 1, *sizes[-2:]])
    pair = (last[0], last[1])
    pooled = _pool(call, kind, flat, {**windows.pooling(pair), "layout": "NCHW"})
    unpooled = write.reshape(pooled, [*sizes[:-2], *shape_of(pooled)[-2:]])
    return write.permute(unpooled, [order.index(i) for i in range(len(order))])


def _pool(call: HloCall, kind: str, x: Expr, how: dict[str, Any]) -> Expr:
    emit: Callable[..., Expr] = call.write.emit
    if kind == "maximum":
        return emit(_op.nn.max_pool2d(x, **how))
    if kind == "minimum":
        return emit(_op.negative(emit(_op.nn.max_pool2d(emit(_op.negative(x)), **how))))
    mean = emit(_op.nn.avg_pool2d(x, count_include_pad=True, **how))
    return emit(_op.multiply(mean, constant(math.prod(how["pool_size"]), dtype_of(x))))


def _select_and_scatter(call: HloCall) -> TranslatedTensor:
    """Translate the gradient of a max pool, scattered to the maxima."""
    regions = [applied(call.region(index)) for index in range(2)]
    steps = call.region(0).operations
    direction = str(steps[0].attributes.get("comparison_direction"))
    names = [argument.name for argument in call.region(0).arguments]
    if regions != ["compare", "add"] or direction != "GE" or steps[0].operands != names:
        raise Unsupported("a scatter of windows that is not the gradient of max pooling")
    if not is_neutral("add", call[2]):
        raise Unsupported("a scatter of windows that has an unsupported initial value")
    windows, write = _windows(call), call.write
    dims = next((d for d in _LAYOUTS if set(windows.moved) <= set(d)), None)
    if dims is None or len(call[0].shape) != 4:
        raise Unsupported("a scatter of windows that is not over the two spatial dims of images")
    order = [0, 3, 1, 2] if dims == (1, 2) else [0, 1, 2, 3]
    x, grad = (write.permute(call.full(index), order) for index in range(2))
    gradient = write.emit(_op.grad.max_pool2d_backward(grad, x, **windows.pooling(dims)))
    back = [order.index(i) for i in range(4)]
    return TranslatedTensor(write.permute(gradient, back), call.shape)


CONVERTERS: dict[str, Converter] = {
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}
