# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of ops that order elements: they go back to where the values came from."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
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

from .registry import item, register_gradient, shape_of


def _sent_back(x: Any, places: Any, values: Any, axis: int, builder: relax.BlockBuilder) -> Any:
    """Zeros like x with values at places along a dim."""
    empty = builder.emit(zeros(x.ty.shape, str(x.ty.dtype)))
    places = builder.emit(astype(places, "int64"))
    return scatter_elements(empty, places, values, axis=axis, reduction="add")


@register_gradient("sort")
def _sort(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    x, axis = call.args[0], int(call.attrs.axis) % len(shape_of(call.args[0]))
    places = argsort(x, axis, bool(call.attrs.descending), "int32")
    return [_sent_back(x, builder.emit(places), grad, axis, builder)]


@register_gradient("topk")
def _topk(y: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Where the indices were not asked for they are found again."""
    x, a = call.args[0], call.attrs
    axis = int(a.axis) % len(shape_of(x))
    if str(a.ret_type) == "both":
        places = builder.emit(item(y, 1))
        return [_sent_back(x, places, builder.emit(item(grad, 0)), axis, builder)]
    if str(a.ret_type) == "indices":
        return [None]
    places = topk_op(x, int(a.k), axis, "indices", bool(a.largest), "int32")
    return [_sent_back(x, builder.emit(places), grad, axis, builder)]


@register_gradient("median")
def _median(y: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """The lower of two middle elements gets all; of a whole tensor, all that equal it share."""
    x, a = call.args[0], call.attrs
    if a.axis is None:
        mine = builder.emit(astype(equal(x, y), str(x.ty.dtype)))
        return [multiply(mine, divide(grad, sum_op(mine)))]
    axis = int(a.axis[0]) % len(shape_of(x))
    values, places = builder.emit(item(grad, 0)), builder.emit(item(y, 1))
    if not bool(a.keepdims):
        values, places = (builder.emit(expand_dims(t, axis)) for t in (values, places))
    return [_sent_back(x, places, values, axis, builder)]
