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
    rows, whole = table.local[axis], table.whole[axis]
    places = cx.operand(1)
    if index.dtype != "int64":
        places = cx.emit(relax.op.astype(places, "int64"), "places")
    mode = str(a.mode)
    if mode == "clip":
        places = cx.emit(relax.op.clip(places, 0, whole - 1), "places")
    elif mode == "wrap":
        places = cx.emit(relax.op.floor_mod(places, relax.const(whole, "int64")), "places")
    start = cx.emit(relax.op.multiply(cx.position(axes), relax.const(rows, "int64")), "start")
    own = cx.emit(relax.op.subtract(places, start), "own")
    above = cx.emit(relax.op.greater_equal(own, relax.const(0, "int64")), "above")
    below = cx.emit(relax.op.less(own, relax.const(rows, "int64")), "below")
    here = cx.emit(relax.op.logical_and(above, below), "here")
    near = cx.emit(relax.op.clip(own, 0, rows - 1), "near")
    found = cx.emit(relax.op.take(cx.operand(0), near, axis=axis, mode="fast"), "found")
    shape = list(index.local) + [1] * (len(table.whole) - 1 - axis)
    wide = cx.emit(relax.op.reshape(here, shape), "here")
    return relax.op.where(wide, found, cx.scalar(0, table.dtype))


@register_local("relax.nn.softmax", "relax.nn.log_softmax")
def softmax(cx: LocalCall) -> Any:
    """Over a cut axis: maximum and sum of exponentials are reduced over the devices."""
    own = cx.ins[0].shard
    axis = int(cx.call.attrs.axis) % len(own.whole)
    cut = cx.axes_of_dim(0, axis)
    if not cut:
        return cx.same()
    x = cx.operand(0)
    narrow = own.dtype in ("float16", "bfloat16")
    if narrow:
        x = cx.emit(relax.op.astype(x, "float32"), "wide")
    masked = axis in own.padded_dims
    if masked:
        low = cx.scalar(neutral_element("max", "float32"), "float32")
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
    if narrow:
        result = relax.op.astype(cx.emit(result, "wide"), own.dtype)
    return result
