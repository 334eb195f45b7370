# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops that combine across devices in a way of their own: means, look-ups, softmax."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from ...ir import ops
from .calls import LocalCall, register_local
from .padding import neutral_element
from .statistics import widened


@register_local("relax.mean")
def mean(cx: LocalCall) -> Any:
    """Over a cut dim: the local sum divided by the whole count, one term of the mean."""
    if not any(f is not None and f.reduces for f in cx.form.factors):
        return cx.same()
    a, own = cx.call.attrs, cx.ins[0].shard
    ndim = len(own.whole)
    axes = range(ndim) if a.axis is None else [int(x) % ndim for x in a.axis]
    count = math.prod(own.whole[d] for d in axes)
    total = cx.emit(relax.op.sum(cx.operand(0), list(axes), bool(a.keepdims)), "sum")
    return relax.op.divide(total, cx.scalar(count, own.dtype))


@register_local("relax.nn.cross_entropy_with_logits")
def cross_entropy(cx: LocalCall) -> Any:
    """The op divides by the local extent of dim 0: rescale to the whole one."""
    own, rescaled = cx.ins[0].shard, False
    for factor in cx.form.factors:
        rescaled |= factor is not None and factor.rescale
    if not rescaled:
        return cx.same()
    part = cx.emit(cx.same(), "part")
    share = own.local[0] / own.whole[0]
    return relax.op.multiply(part, cx.scalar(share, own.dtype))


@register_local("relax.take")
def take(cx: LocalCall) -> Any:
    """Rows of the table on several devices: each looks up its own, zeros stand for the rest."""
    axes = tuple(
        a
        for a, f in enumerate(cx.form.factors)
        if f is not None and f.reduces and int(cx.mesh.shape[a]) > 1
    )
    if not axes:
        return cx.same()
    a, table, index = cx.call.attrs, cx.ins[0].shard, cx.ins[1].shard
    axis = int(a.axis) % len(table.whole) if a.axis is not None else 0
    whole = table.whole[axis]
    places, mode = cx.operand(1), str(a.mode)
    if mode in ("clip", "wrap"):
        places = as_int64(cx, places)
    if mode == "clip":
        places = cx.emit(relax.op.clip(places, 0, whole - 1), "places")
    elif mode == "wrap":
        places = cx.emit(relax.op.floor_mod(places, relax.const(whole, "int64")), "places")
    here, near = own_places(cx, places, 0, axis)
    found = cx.emit(relax.op.take(cx.operand(0), near, axis=axis, mode="fast"), "found")
    shape = list(index.local) + [1] * (len(table.whole) - 1 - axis)
    wide = cx.emit(relax.op.reshape(here, shape), "here")
    return relax.op.where(wide, found, cx.scalar(0, table.dtype))


@register_local("relax.grad.take_backward")
def take_backward(cx: LocalCall) -> Any:
    """Rows of the table on several devices: each adds up what was looked up among its own."""
    a, grad, table = cx.call.attrs, cx.ins[0].shard, cx.ins[1].shard
    axis = int(a.axis) if a.axis is not None else 0
    axes = cx.axes_of_dim(1, axis)
    if not axes:
        return cx.same()
    here, near = own_places(cx, cx.operand(2), 1, axis)
    shape = [1] * axis + list(cx.ins[2].shard.local) + [1] * (len(table.whole) - 1 - axis)
    wide = cx.emit(relax.op.reshape(here, shape), "here")
    mine = cx.emit(relax.op.where(wide, cx.operand(0), cx.scalar(0, grad.dtype)), "mine")
    near = cx.emit(relax.op.astype(near, cx.ins[2].shard.dtype), "near")
    return relax.op.grad.take_backward(mine, cx.operand(1), near, axis)


def as_int64(cx: LocalCall, places: Any) -> Any:
    """Indices as int64."""
    if str(places.ty.dtype) == "int64":
        return places
    return cx.emit(relax.op.astype(places, "int64"), "places")


def own_places(cx: LocalCall, places: Any, number: int, dim: int) -> tuple[Any, Any]:
    """Which indices name rows of this device, and where they stand among them.

    Parameters
    ----------
    cx : LocalCall
    places : variable
        Indices into all rows.
    number, dim : int
        The operand with the rows, and its dim of them, which is cut.

    Returns
    -------
    here : variable
        Bool, like the indices.
    near : variable
        int64; for rows of other devices some row of this one.
    """
    shard = cx.ins[number].shard
    rows = shard.local[dim]
    end = cx.held(number, dim) if dim in shard.inner_dims else relax.const(rows, "int64")
    own = cx.emit(relax.op.subtract(as_int64(cx, places), cx.start(number, dim)), "own")
    above = cx.emit(relax.op.greater_equal(own, relax.const(0, "int64")), "above")
    below = cx.emit(relax.op.less(own, end), "below")
    here = cx.emit(relax.op.logical_and(above, below), "here")
    return here, cx.emit(relax.op.clip(own, 0, rows - 1), "near")


@register_local("relax.nn.softmax", "relax.nn.log_softmax")
def softmax(cx: LocalCall) -> Any:
    """Over a cut axis: maximum and sum of exponentials are reduced over the devices."""
    own = cx.ins[0].shard
    axis = int(cx.call.attrs.axis) % len(own.whole)
    cut = cx.axes_of_dim(0, axis)
    if not cut:
        return cx.same()
    x = widened(cx, cx.operand(0))
    dtype = str(x.ty.dtype)
    if axis in own.padded_dims:
        low = cx.scalar(neutral_element("max", dtype), dtype)
        x = cx.emit(relax.op.where(cx.valid(0, axis), x, low), "kept")
    top = cx.emit(relax.op.max(x, [axis], keepdims=True), "max")
    top = cx.emit(ops.all_reduce(top, cx.mesh, cut, "max"), "max")
    shifted = cx.emit(relax.op.subtract(x, top), "shifted")
    powers = cx.emit(relax.op.exp(shifted), "exp")
    total = cx.emit(relax.op.sum(powers, [axis], keepdims=True), "sum")
    total = cx.emit(ops.all_reduce(total, cx.mesh, cut, "sum"), "sum")
    if str(cx.call.op.name) == "relax.nn.softmax":
        result = relax.op.divide(powers, total)
    else:
        result = relax.op.subtract(shifted, cx.emit(relax.op.log(total), "log"))
    if dtype != own.dtype:
        result = relax.op.astype(cx.emit(result, "wide"), own.dtype)
    return result
