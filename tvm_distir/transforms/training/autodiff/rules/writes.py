# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of slices, and of ops that write to slices or at computed indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    astype,
    divide,
    equal,
    flip,
    gather_elements,
    gather_nd,
    multiply,
    ones,
    scatter_elements,
    scatter_nd,
    slice_scatter,
    strided_slice,
    where,
    zeros,
)

from .lookups import indices_together
from .registry import (
    Gradients,
    constant_like,
    fitted,
    padded,
    refuse,
    register_gradient,
    shape_of,
)


@dataclass(frozen=True)
class _Indices:
    """Positions that a call writes.

    Attributes
    ----------
    builder : BlockBuilder
    read : callable
        A function from a tensor to the elements at these positions.
    write : callable
        ``(tensor, values, reduction)`` to the tensor with values written there.
    """

    builder: BlockBuilder
    read: Callable[[Expr], Expr]
    write: Callable[[Expr, Expr, str], Expr]

    def looked(self, value: Expr) -> Var:
        """Emit a read."""
        return self.builder.emit(self.read(self.builder.emit(value)))

    def filled(self, base: Var, values: Var, how: str) -> Var:
        """Emit a write."""
        return self.builder.emit(self.write(base, values, how))


def _fill(make: Any, like: Expr, builder: BlockBuilder) -> Var:
    return builder.emit(make(like.ty.shape, str(like.ty.dtype)))


def _through(call: ir.Call, y: Var, grad: Expr, at: _Indices) -> list[Expr]:
    """Return the gradients of the data and of the written values, and None for the indices.

    What is written last is taken to be everything that was written at a place; what was ``max``
    or ``min`` shares evenly.
    """
    builder, (data, _, values), how = at.builder, call.args, str(call.attrs.reduction)
    if how == "update":
        return [at.write(grad, _fill(zeros, values, builder), "update"), None, at.read(grad)]
    if how == "add":
        return [grad, None, at.read(grad)]
    if how == "mul":
        return _of_product(data, values, grad, at)
    mine = builder.emit(astype(equal(data, y), str(data.ty.dtype)))
    theirs = builder.emit(astype(equal(values, at.looked(y)), str(data.ty.dtype)))
    share = builder.emit(divide(grad, at.filled(mine, theirs, "add")))
    return [multiply(share, mine), None, multiply(at.looked(share), theirs)]


def _of_product(data: Var, values: Var, grad: Expr, at: _Indices) -> list[Expr]:
    """Return the product of all other values at a position, also where one of them is 0."""
    builder = at.builder
    zero, unit = constant_like(0.0, data), constant_like(1.0, data)
    empty = builder.emit(equal(values, zero))
    counted = builder.emit(astype(empty, str(values.ty.dtype)))
    others = builder.emit(where(empty, unit, values))
    count = at.looked(at.filled(_fill(zeros, data, builder), counted, "add"))
    product = at.looked(multiply(grad, at.filled(data, others, "mul")))
    alone = where(equal(count, unit), product, zero)
    among = where(equal(count, zero), divide(product, others), zero)
    factor = at.filled(_fill(ones, data, builder), values, "mul")
    return [multiply(grad, factor), None, where(empty, alone, among)]


@register_gradient("scatter_elements")
def _scatter_elements(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    data, index, _values = call.args
    axis = int(call.attrs.axis) % len(shape_of(data))
    at = _Indices(
        builder,
        lambda t: gather_elements(t, index, axis),
        lambda t, v, how: scatter_elements(t, index, v, axis, how),
    )
    if str(call.attrs.reduction) == "mean":
        raise refuse(call, "TVM's mean of several values depends on their order")
    return _through(call, y, grad, at)


@register_gradient("scatter_nd")
def _scatter_nd(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    index = call.args[1]
    at = _Indices(
        builder, lambda t: gather_nd(t, index), lambda t, v, how: scatter_nd(t, index, v, how)
    )
    return _through(call, y, grad, at)


@register_gradient("index_put")
def _index_put(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    _data, indices, values = call.args
    index = indices_together(indices, builder)
    by_values = builder.emit(gather_nd(grad, index))
    by_data = grad
    if not bool(call.attrs.accumulate):
        by_data = scatter_nd(grad, index, _fill(zeros, by_values, builder), "update")
    return [by_data, None, fitted(builder, by_values, values)]


def _integers(expr: Expr) -> list[int]:
    return [int(n) for n in expr.fields]


@register_gradient("strided_slice")
def _strided_slice(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``strided_slice``: put zeros around and between the sliced rows."""
    shape = list(shape_of(call.args[0]))
    axes, begin, end = (_integers(call.args[i]) for i in (1, 2, 3))
    steps = _integers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    pads, spread = dict[int, tuple[int, int]](), []
    for axis, low, high, step in zip(axes, begin, end, steps, strict=True):
        d = axis % len(shape)
        rows = range(*slice(low, high, step).indices(int(shape[d])))
        if step == 1:
            pads[d] = rows.start, int(shape[d]) - rows.start - len(rows)
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
    if any(map(any, pads.values())) or not spread:
        grad = padded(grad, pads)
    return [grad, *[None] * (len(call.args) - 1)]


@register_gradient("slice_scatter")
def _slice_scatter(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``slice_scatter``: overwritten elements have no gradient."""
    _data, update = call.args[:2]
    low, high, step = (int(n) for n in call.args[2:5])
    axis = int(call.attrs.axis)
    empty = builder.emit(zeros(update.ty.shape, str(update.ty.dtype)))
    cleared = slice_scatter(grad, empty, low, high, step, axis)
    return [cleared, strided_slice(grad, [axis], [low], [high], [step]), None, None, None]
