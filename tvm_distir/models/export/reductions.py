# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write reductions, cumulative ops, sorting, softmax and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .body_writer import Body, Ssa
from .step import ExportStep, Windows, Write, refuse, slide, softmax
from .text import is_float


def _reduced(kind: str) -> Write:
    def write(step: ExportStep) -> Ssa:
        axes = step.axes(len(step[0].shape))
        return step.body.reduce(kind, step[0], axes, bool(step.attrs.keepdims))

    return write


def _mean(step: ExportStep) -> Ssa:
    return step.body.mean(step[0], step.axes(len(step[0].shape)), bool(step.attrs.keepdims))


def _variance(step: ExportStep) -> Ssa:
    return step.body.cast(_wide_variance(step), step.dtype)


def _wide_variance(step: ExportStep) -> Ssa:
    axes, x = step.axes(len(step[0].shape)), step.body.accumulated("sum", step[0])
    return _spread(step.body, x, axes, bool(step.attrs.keepdims))[1]


def _spread(body: Body, x: Ssa, axes: Sequence[int], keep: bool = True) -> tuple[Ssa, Ssa]:
    """Return a value minus its mean, and its variance."""
    moved = body.binary("subtract", x, body.mean(x, axes))
    return moved, body.mean(body.binary("multiply", moved, moved), axes, keep)


def _collapse(step: ExportStep) -> Ssa:
    """Sum to a shape that was broadcast."""
    x, body = step[0], step.body
    front = len(x.shape) - len(step.shape)
    reduced = body.reduce("sum", x, list(range(front)))
    axes = [i for i, n in enumerate(step.shape) if n == 1 != reduced.shape[i]]
    return body.reduce("sum", reduced, axes, True)


def _cumulative(kind: str) -> Write:
    def write(step: ExportStep) -> Ssa:
        x, body = step[0], step.body
        if step.attrs.axis is None:
            x = body.reshape(x, step.shape)
        x = body.cast(x, step.dtype)
        rank, axis = len(x.shape), 0 if step.attrs.axis is None else step.axis(len(x.shape))
        ones, low = [1] * rank, [0] * rank
        sizes = [n if i == axis else 1 for i, n in enumerate(x.shape)]
        low[axis] = x.shape[axis] - 1
        total = slide(body, kind, x, Windows(sizes, ones, ones, low, [0] * rank))
        if not step.attrs.exclusive:
            return total
        if kind == "prod":
            raise refuse(step, "without the element itself")
        return body.binary("subtract", total, x)

    return write


def _top(step: ExportStep) -> Any:
    x, body, attrs = step[0], step.body, step.attrs
    rank = len(x.shape)
    axis = step.axis(rank)
    count = int(attrs.k) if int(attrs.k) > 0 else x.shape[axis]  # as TVM reads 0 and less
    order = [i for i in range(rank) if i != axis] + [axis]
    x = body.transpose(x, order)
    x = x if attrs.largest else body.unary("negate", x)
    shape = (*x.shape[:-1], count)
    values, positions = body.several(
        "chlo.top_k", [x], [(shape, x.dtype), (shape, "int32")], f"k = {count} : i64"
    )
    values = values if attrs.largest else body.unary("negate", values)
    back = [order.index(i) for i in range(rank)]
    positions = body.cast(positions, str(getattr(attrs.dtype, "dtype", attrs.dtype)))
    pair = body.transpose(values, back), body.transpose(positions, back)
    return {"both": pair, "values": pair[0], "indices": pair[1]}[str(attrs.ret_type)]


def _sorted(step: ExportStep, values: Sequence[Ssa]) -> list[Ssa]:
    """Sort values along a dim by the first of them, stably."""
    axis, body = step.axis(len(values[0].shape)), step.body
    pairs = enumerate(value.dtype for value in values for _ in range(2))
    scalars = [Ssa(f"%s{i}", (), dtype) for i, dtype in pairs]
    inner, (a, b), total = Body("%k"), scalars[:2], is_float(values[0].dtype)
    if total:
        a, b = _order_key(inner, a), _order_key(inner, b)
    direction = "GT" if step.attrs.descending else "LT"
    region = inner.as_region(scalars, inner.compare(direction, a, b, total))
    kinds = [(value.shape, value.dtype) for value in values]
    notes = f"dimension = {axis} : i64, is_stable = true"
    return body.several("sort", values, kinds, notes, region)


def _order_key(body: Body, value: Ssa) -> Ssa:
    """Normalize zeros and NaN of a float, so that a total order puts NaN last."""
    zero, nan = (body.constant(number, value.dtype) for number in (0.0, math.nan))
    key = body.select(body.compare("EQ", value, zero), zero, value)
    return body.select(body.compare("NE", value, value), nan, key)


def _sort(step: ExportStep) -> Ssa:
    return _sorted(step, [step[0]])[0]


def _argsort(step: ExportStep) -> Ssa:
    x = step[0]
    line = step.body.iota(x.shape, step.axis(len(x.shape)), step.dtype)
    return _sorted(step, [x, line])[1]


def _position(kind: str) -> Write:
    """Return the first index of the maximum or minimum."""

    def write(step: ExportStep) -> Ssa:
        x, body = step[0], step.body
        if step.attrs.axis is None:
            raise refuse(step, "over all dims")
        axis = step.axis(len(x.shape))
        hit = body.compare("EQ", x, body.reduce(kind, x, [axis], True))
        if is_float(x.dtype):  # NaN is the extreme, and equal to nothing
            hit = body.binary("or", hit, body.compare("NE", x, x))
        line = body.iota(x.shape, axis, step.dtype)
        line = body.select(hit, line, int(np.iinfo(step.dtype).max))
        return body.reduce("min", line, [axis], bool(step.attrs.keepdims))

    return write


def _softmax(log: bool) -> Write:
    def write(step: ExportStep) -> Ssa:
        exact = softmax(step.body, step[0], step.axis(len(step[0].shape)), log)
        return step.body.cast(exact, step.dtype)

    return write


def _scaled(step: ExportStep, x: Ssa, axes: Sequence[int], factors: Sequence[Ssa | None]) -> Ssa:
    """Apply the scale and shift of a norm, where given.

    Layer and group norms have both in TVM, whatever their attributes say.
    """
    body = step.body
    shape = [n if i in axes else 1 for i, n in enumerate(x.shape)]
    for name, factor in zip(("multiply", "add"), factors):
        if factor is not None:
            x = body.binary(name, x, body.reshape(body.cast(factor, x.dtype), shape))
    return x


def _divided(body: Body, x: Ssa, variance: Ssa, epsilon: float) -> Ssa:
    return body.binary("multiply", x, body.unary("rsqrt", body.binary("add", variance, epsilon)))


def _layer_norm(step: ExportStep) -> Ssa:
    body, attrs = step.body, step.attrs
    axes = step.axes(len(step[0].shape), "axes")
    moved, variance = _spread(body, body.cast(step[0], "float32"), axes)
    normalized = _divided(body, moved, variance, float(attrs.epsilon))
    return body.cast(_scaled(step, normalized, axes, (step[1], step[2])), step.dtype)


def _rms_norm(step: ExportStep) -> Ssa:
    body = step.body
    axes, x = step.axes(len(step[0].shape), "axes"), body.cast(step[0], "float32")
    square = body.mean(body.binary("multiply", x, x), axes)
    normalized = _divided(body, x, square, float(step.attrs.epsilon))
    return body.cast(_scaled(step, normalized, axes, (step[1], None)), step.dtype)


def _group_norm(step: ExportStep) -> Ssa:
    body, attrs, x = step.body, step.attrs, step[0]
    axis, groups = int(attrs.channel_axis) % len(x.shape), int(attrs.num_groups)
    if axis != 1:
        raise refuse(step, f"with channels in dim {axis}")
    group_shape = [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]]
    over = [2, *(int(a) % len(x.shape) + 1 for a in attrs.axes)]
    moved, variance = _spread(body, body.cast(body.reshape(x, group_shape), "float32"), over)
    normalized = body.reshape(_divided(body, moved, variance, float(attrs.epsilon)), x.shape)
    return body.cast(_scaled(step, normalized, [1], (step[1], step[2])), step.dtype)


def _batch_norm(step: ExportStep) -> tuple[Ssa, Ssa, Ssa]:
    body, attrs = step.body, step.attrs
    x, scale, shift, mean, variance = (step[i] for i in range(5))
    axis, momentum = step.axis(len(x.shape)), float(attrs.momentum)
    shape = [n if i == axis else 1 for i, n in enumerate(x.shape)]
    new = mean, variance
    if attrs.training:
        over = [i for i in range(len(x.shape)) if i != axis]
        seen = body.mean(x, over, False), _spread(body, x, over, False)[1]
        new = (_moved(body, mean, seen[0], momentum), _moved(body, variance, seen[1], momentum))
        mean, variance = seen
    normalized = body.binary("subtract", x, body.reshape(mean, shape))
    normalized = _divided(body, normalized, body.reshape(variance, shape), float(attrs.epsilon))
    factors = (scale if attrs.scale else None, shift if attrs.center else None)
    return _scaled(step, normalized, [axis], factors), new[0], new[1]


def _moved(body: Body, old: Ssa, new: Ssa, momentum: float) -> Ssa:
    decayed = body.binary("multiply", old, 1 - momentum)
    return body.binary("add", decayed, body.binary("multiply", new, momentum))


def _dropout(step: ExportStep) -> tuple[Ssa, Ssa]:
    return step[0], step.body.filled(1, step[0])


WRITERS: dict[str, Write] = {
    **{kind: _reduced(kind) for kind in ("sum", "max", "min", "prod")},
    "mean": _mean,
    "variance": _variance,
    "std": lambda step: step.body.cast(step.body.unary("sqrt", _wide_variance(step)), step.dtype),
    "collapse_sum_to": _collapse,
    "collapse_sum_like": _collapse,
    "cumsum": _cumulative("sum"),
    "cumprod": _cumulative("prod"),
    "topk": _top,
    "sort": _sort,
    "argsort": _argsort,
    "argmax": _position("max"),
    "argmin": _position("min"),
    "nn.softmax": _softmax(False),
    "nn.log_softmax": _softmax(True),
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
    "nn.group_norm": _group_norm,
    "nn.batch_norm": _batch_norm,
    "nn.dropout": _dropout,
}
