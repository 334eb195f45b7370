# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of reads at computed indices, which sum over the reads of an element."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    arange,
    astype,
    broadcast_to,
    clip,
    concat,
    expand_dims,
    floor_mod,
    reshape,
    scatter_elements,
    scatter_nd,
    zeros,
)
from tvm.relax.op.grad import take_backward

from .registry import Gradients, refuse, register_gradient, shape_of


def _within(index: Expr, extent: int, mode: str, call: ir.Call, builder: BlockBuilder) -> Expr:
    """Return the given indices as ``take`` clips or wraps them."""
    if mode == "clip":
        return builder.emit(clip(index, 0, extent - 1))
    if mode == "wrap":
        return builder.emit(floor_mod(index, relax.const(extent, str(index.ty.dtype))))
    if mode == "nan":
        raise refuse(call, "the gradient of a look-up that gives NaN beyond its table is not known")
    return index


@register_gradient("take")
def _take(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``take``: sum the rows of the gradient by index.

    TVM's kernel takes flat indices, and of the table only the shape: zeros represent it, so that a
    table on other devices need not be sent.
    """
    table, index = call.args
    shape, index_shape = list(shape_of(table)), shape_of(index)
    if call.attrs.axis is None and len(shape) != 1:
        raise refuse(call, "the gradient of a look-up in a flattened table is not known")
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    index = _within(index, shape[axis], str(call.attrs.mode), call, builder)
    count = math.prod(index_shape)
    if len(index_shape) != 1:
        index = builder.emit(reshape(index, (count,)), "flat_index")
        grad = builder.emit(reshape(grad, (*shape[:axis], count, *shape[axis + 1 :])))
    empty = builder.emit(zeros(table.ty.shape, str(table.ty.dtype)), "rows")
    return [take_backward(grad, empty, index, axis), None]


@register_gradient("gather_elements")
def _gather_elements(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    x, index = call.args
    axis = int(call.attrs.axis) % len(shape_of(x))
    empty = builder.emit(zeros(x.ty.shape, str(x.ty.dtype)))
    return [scatter_elements(empty, index, grad, axis=axis, reduction="add"), None]


@register_gradient("gather_nd")
def _gather_nd(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``gather_nd``, with its batch dims turned into indexed dims.

    Where rows along a single dim are read, they are added along that dim, so that the batch dims
    may remain sharded.
    """
    x, index = call.args
    empty = builder.emit(zeros(x.ty.shape, str(x.ty.dtype)))
    shape, batch_dims = shape_of(index), int(call.attrs.batch_dims)
    if batch_dims and shape[-1] == 1 and len(shape) == batch_dims + 2:
        rest = list(shape_of(x))[batch_dims + 1 :]
        rows = builder.emit(reshape(index, [*shape[:-1], *(1 for _ in rest)]))
        rows = builder.emit(broadcast_to(rows, [*shape[:-1], *rest]))
        return [scatter_elements(empty, rows, grad, axis=batch_dims, reduction="add"), None]
    batch_index: list[Any] = []
    for d in range(batch_dims):
        positions = arange(0, int(shape[d]), 1, str(index.ty.dtype))
        wide = reshape(positions, [shape[d] if k == d else 1 for k in range(len(shape))])
        batch_index.append(builder.emit(broadcast_to(wide, [*shape[:-1], 1])))
    if batch_index:
        index = builder.emit(concat([*batch_index, index], len(shape) - 1))
    return [scatter_nd(empty, index, grad, "add"), None]


def indices_together(indices: Expr, builder: BlockBuilder) -> Var:
    """Combine a tensor of indices per leading dim into a single index vector per element.

    Parameters
    ----------
    indices : Tuple or Var
        The k tensors of integers, which are broadcast to a single shape.

    Returns
    -------
    Var
        (*shape, k) of int64.
    """
    fields = list(indices.fields) if isinstance(indices, relax.Tuple) else None
    if fields is None:
        fields = [relax.TupleGetItem(indices, i) for i in range(len(indices.ty.fields))]
    fields = [f if isinstance(f, ir.Var) else builder.emit(f) for f in fields]
    rank = max(len(shape_of(f)) for f in fields)
    shape = [1] * rank
    for f in fields:
        for d, n in enumerate(shape_of(f), rank - len(shape_of(f))):
            shape[d] = n if shape[d] == 1 else shape[d]
    columns = []
    for f in fields:
        positions = builder.emit(astype(f, "int64")) if str(f.ty.dtype) != "int64" else f
        if list(shape_of(positions)) != shape:
            positions = builder.emit(broadcast_to(positions, shape))
        columns.append(builder.emit(expand_dims(positions, rank)))
    return builder.emit(concat(columns, rank)) if len(columns) > 1 else columns[0]


@register_gradient("index_tensor")
def _index_tensor(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    x = call.args[0]
    index = indices_together(call.args[1], builder)
    empty = builder.emit(zeros(x.ty.shape, str(x.ty.dtype)))
    return [scatter_nd(empty, index, grad, "add"), None]
