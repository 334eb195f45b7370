# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops whose statistics run over a cut dim: each is reduced over the devices, padding left out.

Formulas and dtypes are those of TVM's kernels, so that what differs from the single device is the
order of the sums only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...ir import ops
from .calls import LocalCall, register_local
from .padding import neutral_element

_WIDE = "float32"
_NARROW = ("float16", "bfloat16")


def cutting_axes(cx: LocalCall, dims: Sequence[int], number: int = 0) -> tuple[int, ...]:
    """Mesh axes that cut any of some dims of an operand, in mesh order."""
    return tuple(sorted({axis for d in dims for axis in cx.axes_of_dim(number, d)}))


def filled(cx: LocalCall, x: Any, dims: Sequence[int], value: Any, dtype: str) -> Any:
    """Put a value into the padding of some dims of (what became of) the first operand."""
    for d in dims:
        if d in cx.ins[0].shard.padded_dims:
            fill = cx.scalar(value, dtype)
            x = cx.emit(relax.op.where(cx.valid(0, d), x, fill), "kept")
    return x


def reduced(cx: LocalCall, x: Any, axes: Sequence[int], kind: str, hint: str) -> Any:
    """Reduce a statistic over the devices along mesh axes."""
    if not axes:
        return x
    return cx.emit(ops.all_reduce(x, cx.mesh, list(axes), kind), hint)


class Moments:
    """Mean and variance over dims of the first operand, some of which are cut.

    Parameters
    ----------
    cx : LocalCall
    x : variable
        The first operand, perhaps in a wider dtype or with dims split.
    dims : sequence of int
        Dims of ``x``.
    axes : sequence of int
        Mesh axes that cut them.
    count : int
        Elements of the whole that one statistic sees.
    clean : bool
        The padding of these dims holds zeros already.
    """

    def __init__(
        self,
        cx: LocalCall,
        x: Any,
        dims: Sequence[int],
        axes: Sequence[int],
        count: int,
        clean: bool = False,
    ) -> None:
        self.cx, self.x, self.dims, self.axes, self.clean = cx, x, list(dims), axes, clean
        self.dtype = str(x.ty.dtype)
        self.count = cx.scalar(count, self.dtype)

    def _neutral(self, value: Any) -> Any:
        return value if self.clean else filled(self.cx, value, self.dims, 0, self.dtype)

    def total(self, value: Any, hint: str) -> Any:
        """Sum over the dims and the devices, dims kept."""
        part = self.cx.emit(relax.op.sum(value, self.dims, keepdims=True), hint)
        return reduced(self.cx, part, self.axes, "sum", hint)

    def average(self, value: Any, hint: str) -> Any:
        """Mean over the dims and the devices, dims kept."""
        return self.cx.emit(relax.op.divide(self.total(value, hint), self.count), hint)

    def centred(self) -> tuple[Any, Any, Any]:
        """Mean, ``x - mean`` (zero in the padding) and the mean of its squares."""
        cx = self.cx
        mean = self.average(self._neutral(self.x), "mean")
        apart = cx.emit(relax.op.subtract(self.x, mean), "apart")
        inner = self._neutral(apart)
        squares = cx.emit(relax.op.multiply(inner, inner), "squares")
        return mean, apart, self.average(squares, "variance")

    def sums(self) -> tuple[Any, Any]:
        """Mean and ``E[x^2] - mean^2``, both sums in one collective."""
        cx = self.cx
        inner = self._neutral(self.x)
        squares = cx.emit(relax.op.multiply(inner, inner), "squares")
        both = [
            cx.emit(relax.op.sum(value, self.dims, keepdims=True), "sum")
            for value in (inner, squares)
        ]
        pair = cx.emit(relax.op.stack(both, 0), "sums")
        pair = reduced(cx, pair, self.axes, "sum", "sums")
        pair = cx.emit(relax.op.divide(pair, self.count), "means")
        shape = [int(n) for n in both[0].ty.shape]
        halves = cx.emit(relax.op.split(pair, 2, 0), "halves")
        mean, square = (
            cx.emit(relax.op.reshape(cx.emit(relax.TupleGetItem(halves, i)), shape), "mean")
            for i in (0, 1)
        )
        away = cx.emit(relax.op.multiply(mean, mean), "square")
        return mean, cx.emit(relax.op.subtract(square, away), "variance")


def _inverse_root(cx: LocalCall, value: Any, epsilon: float) -> Any:
    """``1 / sqrt(value + epsilon)``."""
    small = cx.scalar(epsilon, str(value.ty.dtype))
    return cx.emit(relax.op.rsqrt(cx.emit(relax.op.add(value, small), "raised")), "scale")


def widened(cx: LocalCall, x: Any) -> Any:
    """``x`` in float32 where its dtype is narrower."""
    return cx.emit(relax.op.astype(x, _WIDE), "wide") if str(x.ty.dtype) in _NARROW else x


def _back(cx: LocalCall, x: Any, dtype: str) -> Any:
    return x if str(x.ty.dtype) == dtype else cx.emit(relax.op.astype(x, dtype), "normed")


def _along(cx: LocalCall, scale: Any, dims: Sequence[int], ndim: int) -> Any:
    """Reshape a scale over some dims so that it broadcasts over ``ndim``."""
    sizes = [int(n) for n in scale.ty.shape]
    shape = [1] * ndim
    for size, d in zip(sizes, dims, strict=True):
        shape[d] = size
    return cx.emit(relax.op.reshape(scale, shape), "along")


def _scaled_and_shifted(
    cx: LocalCall, normed: Any, dims: Sequence[int], scale: bool = True, shift: bool = True
) -> Any:
    """``normed * gamma + beta``, operands 1 and 2.

    TVM's kernels read the attributes ``scale`` and ``center`` of a batch norm only.
    """
    ndim = len(normed.ty.shape)
    result = normed
    if scale:
        result = cx.emit(relax.op.multiply(result, _along(cx, cx.operand(1), dims, ndim)))
    if shift:
        result = cx.emit(relax.op.add(result, _along(cx, cx.operand(2), dims, ndim)))
    return result


@register_local("relax.nn.layer_norm")
def layer_norm(cx: LocalCall) -> Any:
    """Mean, then variance, reduced over the devices that cut what is normalized."""
    own = cx.ins[0].shard
    dims = [int(a) % len(own.whole) for a in cx.call.attrs.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    count = math.prod(own.whole[d] for d in dims)
    moments = Moments(cx, widened(cx, cx.operand(0)), dims, axes, count)
    _, apart, variance = moments.centred()
    scale = _inverse_root(cx, variance, float(cx.call.attrs.epsilon))
    normed = _back(cx, cx.emit(relax.op.multiply(apart, scale), "normed"), own.dtype)
    return _scaled_and_shifted(cx, normed, dims)


@register_local("relax.nn.rms_norm")
def rms_norm(cx: LocalCall) -> Any:
    """The mean square reduced over the devices that cut what is normalized; in float32."""
    own = cx.ins[0].shard
    dims = [int(a) % len(own.whole) for a in cx.call.attrs.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    x, gamma = widened(cx, cx.operand(0)), widened(cx, cx.operand(1))
    inner = filled(cx, x, dims, 0, _WIDE)
    count = math.prod(own.whole[d] for d in dims)
    squares = cx.emit(relax.op.multiply(inner, inner), "squares")
    mean = Moments(cx, x, dims, axes, count).average(squares, "mean_square")
    scale = _inverse_root(cx, mean, float(cx.call.attrs.epsilon))
    normed = cx.emit(relax.op.multiply(scale, x), "normed")
    normed = cx.emit(relax.op.multiply(normed, _along(cx, gamma, dims, len(own.whole))))
    return _back(cx, normed, own.dtype)


@register_local("relax.nn.group_norm")
def group_norm(cx: LocalCall) -> Any:
    """Each device normalizes its own groups; sums over cut dims are reduced."""
    a, own = cx.call.attrs, cx.ins[0].shard
    channel = int(a.channel_axis) % len(own.whole)
    groups = int(a.num_groups) // own.counts[channel]
    dims = [int(x) % len(own.whole) for x in a.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        return relax.op.nn.group_norm(
            *(cx.operand(i) for i in range(3)),
            num_groups=groups,
            channel_axis=int(a.channel_axis),
            axes=[int(x) for x in a.axes],
            epsilon=float(a.epsilon),
            center=bool(a.center),
            scale=bool(a.scale),
        )
    x = widened(cx, cx.operand(0))
    inner = filled(cx, x, dims, 0, str(x.ty.dtype))
    shape = [int(n) for n in x.ty.shape]
    width = shape[channel] // groups
    split = [*shape[:channel], groups, width, *shape[channel + 1 :]]
    parted = cx.emit(relax.op.reshape(inner, split), "groups")
    over = [channel + 1, *(d if d < channel else d + 1 for d in dims)]
    count = width * math.prod(own.whole[d] for d in dims)
    mean, variance = Moments(cx, parted, sorted(over), axes, count, clean=True).sums()
    scale = _inverse_root(cx, variance, float(a.epsilon))
    whole = cx.emit(relax.op.reshape(x, split), "groups")
    apart = cx.emit(relax.op.subtract(whole, mean), "apart")
    normed = cx.emit(relax.op.multiply(apart, scale), "normed")
    normed = _back(cx, cx.emit(relax.op.reshape(normed, shape), "normed"), own.dtype)
    return _scaled_and_shifted(cx, normed, [channel])


@register_local("relax.nn.instance_norm")
def instance_norm(cx: LocalCall) -> Any:
    """Sums over cut dims are reduced."""
    a, own = cx.call.attrs, cx.ins[0].shard
    channel = int(a.channel_axis) % len(own.whole)
    dims = [int(x) % len(own.whole) for x in a.axes]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    x = widened(cx, cx.operand(0))
    count = math.prod(own.whole[d] for d in dims)
    mean, variance = Moments(cx, x, dims, axes, count).sums()
    scale = _inverse_root(cx, variance, float(a.epsilon))
    apart = cx.emit(relax.op.subtract(x, mean), "apart")
    normed = _back(cx, cx.emit(relax.op.multiply(apart, scale), "normed"), own.dtype)
    return _scaled_and_shifted(cx, normed, [channel])


@register_local("relax.nn.batch_norm")
def batch_norm(cx: LocalCall) -> Any:
    """Mean and variance of a training batch reduced; the running ones move alike everywhere."""
    a, own = cx.call.attrs, cx.ins[0].shard
    channel = int(a.axis) % len(own.whole)
    dims = [d for d in range(len(own.whole)) if d != channel]
    axes = cutting_axes(cx, dims)
    if not axes or not a.training:
        return cx.same()
    x = cx.operand(0)
    count = math.prod(own.whole[d] for d in dims)
    mean, apart, variance = Moments(cx, x, dims, axes, count).centred()
    small = cx.scalar(float(a.epsilon), own.dtype)
    root = cx.emit(relax.op.sqrt(cx.emit(relax.op.add(variance, small), "raised")), "root")
    normed = cx.emit(relax.op.divide(apart, root), "normed")
    data = _scaled_and_shifted(cx, normed, [channel], bool(a.scale), bool(a.center))
    results = [data]
    for number, statistic in ((3, mean), (4, variance)):
        moving = cx.operand(number)
        dtype = str(moving.ty.dtype)
        flat = cx.emit(relax.op.reshape(statistic, [own.local[channel]]), "statistic")
        kept = cx.emit(relax.op.multiply(cx.scalar(1 - float(a.momentum), dtype), moving))
        added = cx.emit(relax.op.multiply(cx.scalar(float(a.momentum), dtype), flat))
        results.append(cx.emit(relax.op.add(kept, added), "moving"))
    return relax.Tuple(results)


@register_local("relax.variance", "relax.std")
def spread(cx: LocalCall) -> Any:
    """Mean, then the mean of squared differences, reduced."""
    a, own = cx.call.attrs, cx.ins[0].shard
    ndim = len(own.whole)
    dims = list(range(ndim)) if a.axis is None else [int(x) % ndim for x in a.axis]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    count = math.prod(own.whole[d] for d in dims)
    _, _, found = Moments(cx, cx.operand(0), dims, axes, count).centred()
    if str(cx.call.op.name) == "relax.std":
        found = cx.emit(relax.op.sqrt(found), "root")
    return found if bool(a.keepdims) else relax.op.reshape(found, list(cx.outs[0].local))


@register_local("relax.argmax", "relax.argmin")
def extreme_place(cx: LocalCall) -> Any:
    """The extreme reduced; then the first place where a device has it."""
    a, own = cx.call.attrs, cx.ins[0].shard
    axis = 0 if a.axis is None else int(a.axis) % len(own.whole)
    axes = cx.axes_of_dim(0, axis)
    if not axes:
        return cx.same()
    kind = "max" if str(cx.call.op.name) == "relax.argmax" else "min"
    extreme, place = (
        (relax.op.max, relax.op.argmax) if kind == "max" else (relax.op.min, relax.op.argmin)
    )
    x = filled(cx, cx.operand(0), [axis], neutral_element(kind, own.dtype), own.dtype)
    mine = cx.emit(extreme(x, axis, keepdims=True), kind)
    best = reduced(cx, mine, axes, kind, kind)
    here = cx.emit(place(x, axis, keepdims=True), "place")
    there = cx.emit(relax.op.add(here, cx.start(0, axis)), "place")
    nowhere = relax.const(own.whole[axis], "int64")
    has = cx.emit(relax.op.equal(mine, best), "has")
    first = cx.emit(relax.op.where(has, there, nowhere), "place")
    first = reduced(cx, first, axes, "min", "place")
    return first if bool(a.keepdims) else relax.op.reshape(first, list(cx.outs[0].local))
