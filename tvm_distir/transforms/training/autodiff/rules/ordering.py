# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of sorting ops, which scatter back to the original positions."""

from __future__ import annotations

from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    argsort,
    astype,
    divide,
    equal,
    expand_dims,
    multiply,
    scatter_elements,
    zeros,
)
from tvm.relax.op import sum as sum_op
from tvm.relax.op import topk as topk_op

from .registry import Gradients, item, register_gradient, shape_of


def _sent_back(x: Expr, positions: Var, values: Var, axis: int, builder: BlockBuilder) -> Expr:
    """Scatter values along a dim into zeros like x."""
    empty = builder.emit(zeros(x.ty.shape, str(x.ty.dtype)))
    positions = builder.emit(astype(positions, "int64"))
    return scatter_elements(empty, positions, values, axis=axis, reduction="add")


@register_gradient("sort")
def _sort(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    x, axis = call.args[0], int(call.attrs.axis) % len(shape_of(call.args[0]))
    positions = argsort(x, axis, bool(call.attrs.descending), "int32")
    return [_sent_back(x, builder.emit(positions), grad, axis, builder)]


@register_gradient("topk")
def _topk(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``topk``, computing the indices if they were not returned."""
    x, a = call.args[0], call.attrs
    axis = int(a.axis) % len(shape_of(x))
    if str(a.ret_type) == "both":
        positions = builder.emit(item(y, 1))
        return [_sent_back(x, positions, builder.emit(item(grad, 0)), axis, builder)]
    if str(a.ret_type) == "indices":
        return [None]
    positions = topk_op(x, int(a.k), axis, "indices", bool(a.largest), "int32")
    return [_sent_back(x, builder.emit(positions), grad, axis, builder)]


@register_gradient("median")
def _median(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``median``: the lower middle element, or all equal ones of a full tensor."""
    x, a = call.args[0], call.attrs
    if a.axis is None:
        mine = builder.emit(astype(equal(x, y), str(x.ty.dtype)))
        return [multiply(mine, divide(grad, sum_op(mine)))]
    axis = int(a.axis[0]) % len(shape_of(x))
    values, positions = builder.emit(item(grad, 0)), builder.emit(item(y, 1))
    if not bool(a.keepdims):
        values, positions = (builder.emit(expand_dims(t, axis)) for t in (values, positions))
    return [_sent_back(x, positions, values, axis, builder)]
