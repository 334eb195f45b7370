# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of slices and of writes to slices."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax.op import flip, slice_scatter, strided_slice, zeros

from .registry import register_gradient, shape_of


def _integers(expr: Any) -> list[int]:
    return [int(n) for n in expr.fields]


def _rows(extent: int, low: int, high: int, step: int) -> range:
    """Return the rows of a dim that a slice reads, as in Python."""
    return range(*slice(low, high, step).indices(extent))


@register_gradient("strided_slice")
def _strided_slice(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Differentiate ``strided_slice``: put zeros around and between the sliced rows."""
    shape = list(shape_of(call.args[0]))
    axes, begin, end = (_integers(call.args[i]) for i in (1, 2, 3))
    steps = _integers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    widths = [0] * (2 * len(shape))
    spread = []
    for axis, low, high, step in zip(axes, begin, end, steps, strict=True):
        d = axis % len(shape)
        rows = _rows(int(shape[d]), low, high, step)
        if step == 1:
            widths[2 * d], widths[2 * d + 1] = rows.start, int(shape[d]) - rows.start - len(rows)
        else:
            spread.append((d, rows))
    for d, rows in spread:
        if rows.step < 0:
            grad, rows = builder.emit(flip(grad, d)), rows[::-1]
        sizes = list(shape_of(grad))
        sizes[d] = shape[d]
        empty = builder.emit(zeros(sizes, str(grad.ty.dtype)))
        last = rows[-1] + 1 if rows else rows.start
        grad = builder.emit(slice_scatter(empty, grad, rows.start, last, rows.step, d))
    if any(widths) or not spread:
        grad = relax.op.nn.pad(grad, widths, pad_value=0.0)
    return [grad, *[None] * (len(call.args) - 1)]


@register_gradient("slice_scatter")
def _slice_scatter(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Differentiate ``slice_scatter``: overwritten elements have no gradient."""
    _data, written = call.args[:2]
    low, high, step = (int(n) for n in call.args[2:5])
    axis = int(call.attrs.axis)
    empty = builder.emit(zeros(written.ty.shape, str(written.ty.dtype)))
    kept = slice_scatter(grad, empty, low, high, step, axis)
    return [kept, strided_slice(grad, [axis], [low], [high], [step]), None, None, None]
