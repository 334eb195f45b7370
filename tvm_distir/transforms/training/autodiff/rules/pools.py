# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of pools, built on TVM's two ops for two dims.

Of equal elements of a window the first gets the gradient of its maximum, as it does in torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import astype, reshape, strided_slice, zeros
from tvm.relax.op.grad import avg_pool2d_backward, max_pool2d_backward

from .dilated import WindowRange, of_windows, weighted
from .registry import Gradients, padded, refuse, register_gradient, shape_of

LOWEST = {"float16": -65504.0, "bfloat16": -3.0e38, "float32": -3.4e38, "float64": -1.7e308}
"""Below what a window holds, by type."""


@dataclass(frozen=True)
class _Windows:
    """Windows over two dims.

    Attributes
    ----------
    kernel, strides, before, after : tuple of two ints
    ceil, include : bool
        Whether windows may reach beyond the padding; whether averages count the padding.
    layout : str
        NCHW or NHWC.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    ceil: bool
    include: bool
    layout: str

    @property
    def dims(self) -> tuple[int, int]:
        """Return the positions of the two dims."""
        return self.layout.index("H"), self.layout.index("W")

    def reaches(self, data: Expr, result: Expr) -> list[WindowRange]:
        """Return what the windows of a result read along each dim of the data."""
        steps = self.kernel, self.strides, (1, 1), self.before, self.after
        return WindowRange.along(self.dims, data, result, *steps)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of TVM's ops."""
        return {
            "pool_size": self.kernel,
            "strides": self.strides,
            "padding": (*self.before, *self.after),
            "ceil_mode": self.ceil,
            "count_include_pad": self.include,
            "layout": self.layout,
            "out_layout": self.layout,
        }


def _maximum(grad: Expr, x: Expr, w: _Windows, builder: BlockBuilder) -> Expr:
    """Apply TVM's op, which needs as many windows as overlap an element along either dim.

    With fewer it reads windows of the next row: windows without a gradient are put behind. Its
    kernel does not compile in bfloat16, and works in float32 then.
    """
    if str(x.ty.dtype) == "bfloat16":
        wide_grad, data = (builder.emit(astype(value, "float32")) for value in (grad, x))
        return astype(builder.emit(_maximum(wide_grad, data, w, builder)), "bfloat16")
    reaches = w.reaches(x, grad)
    needed = {r.dim: max(r.count, -(-r.kernel // r.stride)) for r in reaches}
    if all(needed[r.dim] == r.count for r in reaches):
        return max_pool2d_backward(grad, x, **w.options)
    ends = {r.dim: (needed[r.dim] - 1) * r.stride + r.kernel - r.before - r.rows for r in reaches}
    wide = [replace(r, after=max(r.after, ends[r.dim])) for r in reaches]
    pads = {r.dim: (r.before, r.after) for r in wide}
    data = builder.emit(padded(x, pads, LOWEST[str(x.ty.dtype)]))
    spare = {
        r.dim: (0, (r.before + r.rows + r.after - r.kernel) // r.stride + 1 - r.count) for r in wide
    }
    inside = replace(w, before=(0, 0), after=(0, 0), ceil=False)
    grad = builder.emit(padded(grad, spare))
    gradient = builder.emit(max_pool2d_backward(grad, data, **inside.options))
    ends_of_rows = [r.before + r.rows for r in reaches]
    return strided_slice(gradient, list(w.dims), list(w.before), ends_of_rows)


def _average(grad: Expr, x: Expr, w: _Windows, builder: BlockBuilder) -> Expr:
    """Apply TVM's op, except for windows beyond the padding, which it miscounts.

    There gradients are divided by what their windows count, and the padding is wide enough.
    """
    if w.ceil:
        reaches = w.reaches(x, grad)
        weights = [r.kernel * r.shares(w.include) for r in reaches]
        grad = weighted(grad, reaches, weights, builder)
        first, second = (r.behind for r in reaches)
        w = replace(w, after=(first, second), ceil=False, include=True)
    return avg_pool2d_backward(grad, x, **w.options)


BACKWARD = {"max": _maximum, "avg": _average}


@register_gradient(*(f"nn.{kind}_pool{n}d" for kind in BACKWARD for n in (1, 2, 3)))
def _pool(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate a pool; a single dim is run as two, and three dims in two steps."""
    a, x = call.attrs, call.args[0]
    layout, count = str(a.layout), len(a.strides)
    if str(a.out_layout or layout) != layout:
        raise refuse(call, "the gradient of a pool that reorders is not known")
    if sorted(layout) != sorted("NC" + "DHW"[3 - count :]):
        raise refuse(call, f"the gradient of a pool of the layout {layout} is not known")
    sizes = [int(n) for n in a.pool_size]
    strides, pads = [int(n) for n in a.strides], [int(n) for n in a.padding]
    ceil, include = bool(a.ceil_mode), bool(a.count_include_pad)
    if any(int(n) != 1 for n in a.dilation):
        return [_dilated(y, call, grad, builder)]
    flat = "NHWC" if layout.endswith("C") else "NCHW"
    backward = BACKWARD["max" if ".max_" in str(call.op.name) else "avg"]

    def windows(first: int | None, second: int | None) -> _Windows:
        def pair(values: list[int], other: int) -> tuple[int, int]:
            left, two = (other if k is None else values[k] for k in (first, second))
            return left, two

        kernel, steps = pair(sizes, 1), pair(strides, 1)
        before, after = pair(pads[:count], 0), pair(pads[count:], 0)
        return _Windows(kernel, steps, before, after, ceil, include, flat)

    if count == 2:
        return [backward(grad, x, windows(0, 1), builder)]
    if count == 1:
        batched_grad = builder.emit(reshape(grad, _with_row(shape_of(grad), flat)))
        data = builder.emit(reshape(x, _with_row(shape_of(x), flat)))
        gradient = backward(batched_grad, data, windows(None, 0), builder)
        return [reshape(builder.emit(gradient), x.ty.shape)]
    return [_three(grad, x, windows(1, 2), windows(0, None), backward, builder)]


def _dilated(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Expr:
    a, x, layout = call.attrs, call.args[0], str(call.attrs.layout)
    dims = [d for d, axis in enumerate(layout) if axis not in "NC"]
    pads = a.padding[: len(dims)], a.padding[len(dims) :]
    reaches = WindowRange.along(dims, x, grad, a.pool_size, a.strides, a.dilation, *pads)
    lowest = LOWEST[str(x.ty.dtype)] if ".max_" in str(call.op.name) else None
    return of_windows(y, grad, x, reaches, lowest, bool(a.count_include_pad), builder)


def _with_row(shape: Any, layout: str) -> list[Any]:
    """Return the shape of a value of a spatial dim with a dim of size 1 before it."""
    result = list(shape)
    result.insert(layout.index("H"), 1)
    return result


def _three(
    grad: Expr, x: Expr, plane: _Windows, depth: _Windows, backward: Any, builder: BlockBuilder
) -> Expr:
    """Differentiate a 3-D pool as a pool over planes followed by a pool over depth."""
    shape, rest = list(shape_of(x)), list(shape_of(grad))
    first = 1 if plane.layout == "NCHW" else 0  # what the depth is joined with
    inner = [*rest[: first + 1], shape[first + 1], *rest[first + 2 :]]  # of pooled planes
    flat, pooled = _joined(shape, first), _joined(inner, first)
    deep, out = _joined(inner, first + 2), _joined(rest, first + 2)
    planes = builder.emit(reshape(x, flat))
    if backward is _maximum:
        largest = builder.emit(relax.op.nn.max_pool2d(planes, **plane.options))
        middle = builder.emit(reshape(largest, deep))
    else:
        middle = builder.emit(zeros(deep, str(x.ty.dtype)))
    back = builder.emit(backward(builder.emit(reshape(grad, out)), middle, depth, builder))
    back = builder.emit(reshape(back, pooled))
    return reshape(builder.emit(backward(back, planes, plane, builder)), shape)


def _joined(shape: list[Any], dim: int) -> list[Any]:
    """Return a shape with a dim and the next one as one."""
    return [*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]]
