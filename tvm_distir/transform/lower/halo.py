# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Halo exchange: from a shard to the rows that the windows of the own results read.

Boundary rows travel by ``collective_permute``: one per neighbour that has some, several on a
side when more rows are needed than a shard holds. A padding that the op would have put around
the whole tensor is put where it belongs: by the exchange itself, which delivers zeros at the
border, or else by a mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...ir import ops
from ...rules.halo import Exchange, Window, exchange
from .calls import LocalCall


def fetched(cx: LocalCall, x: Any, axes: Sequence[int], hop: int) -> Any:
    """``x`` of the rank ``hop`` places before me (behind me when negative), else zeros.

    Places are counted along a dim cut by ``axes``, major first. With several axes the rank that
    many places away lies at one of two distances; both are asked.
    """
    axis, size = axes[-1], int(cx.mesh.shape[axes[-1]])
    if len(axes) == 1:
        if not hop:
            return x
        return cx.emit(ops.collective_permute(x, cx.mesh, axis, hop), "rows")
    major, minor = divmod(hop, size)
    near = x
    if minor:
        near = cx.emit(ops.collective_permute(x, cx.mesh, axis, minor), "rows")
    near = fetched(cx, near, axes[:-1], major)
    if not minor:
        return near
    far = cx.emit(ops.collective_permute(x, cx.mesh, axis, minor - size), "rows")
    far = fetched(cx, far, axes[:-1], major + 1)
    mine = cx.emit(ops.axis_index(cx.mesh, axis), "axis_index")
    close = cx.emit(relax.op.greater_equal(mine, relax.const(minor, "int64")), "close")
    return cx.emit(relax.op.where(close, near, far), "rows")


def _block(cx: LocalCall, x: Any, dim: int, begin: int, end: int) -> Any:
    if begin == 0 and end == int(x.ty.shape[dim]):
        return x
    return cx.emit(relax.op.strided_slice(x, [dim], [begin], [end]), "rows")


def _side(
    cx: LocalCall, x: Any, dim: int, axes: Sequence[int], count: int, before: bool, fill: Any
) -> list[Any]:
    """``count`` rows of the ranks before (behind) me, in order; ``fill`` where there is no rank.

    ``fill`` is None when what arrives at the border does not matter, or zeros will do.
    """
    rows, ranks = int(x.ty.shape[dim]), cx.ins[0].shard.counts[dim]
    parts: list[Any] = []
    hop = 1
    while count > 0 and hop < ranks:
        taken = min(count, rows)
        edge = _block(cx, x, dim, rows - taken if before else 0, rows if before else taken)
        part = fetched(cx, edge, axes, hop if before else -hop)
        if fill is not None:
            place = cx.position(axes)
            if before:
                there = relax.op.greater_equal(place, relax.const(hop, "int64"))
            else:
                there = relax.op.less(place, relax.const(ranks - hop, "int64"))
            part = cx.emit(relax.op.where(cx.emit(there, "there"), part, fill), "rows")
        parts = [part, *parts] if before else [*parts, part]
        count, hop = count - taken, hop + 1
    return parts


def _filled(cx: LocalCall, x: Any, dim: int, plan: Exchange, value: Any) -> Any:
    """Put the filler rows around what was fetched."""
    if not plan.low and not plan.high:
        return x
    shape = [int(n) for n in x.ty.shape]
    if math.isfinite(value):
        widths = [0] * (2 * len(shape))
        widths[2 * dim], widths[2 * dim + 1] = plan.low, plan.high
        return cx.emit(relax.op.nn.pad(x, widths, pad_value=float(value)), "rows")
    fill, parts = cx.scalar(value, cx.ins[0].shard.dtype), [x]  # infinite attributes have no text
    for count, at in ((plan.low, 0), (plan.high, 2)):
        if count:
            shape[dim] = count
            parts.insert(at, cx.emit(relax.op.broadcast_to(fill, shape), "fill"))
    return cx.emit(relax.op.concat(parts, dim), "rows")


def _windowed(cx: LocalCall, x: Any, dim: int, axes: Sequence[int], plan: Exchange) -> Any:
    """Cut the rows out that the local windows read."""
    if not plan.drift:
        return _block(cx, x, dim, plan.start, plan.start + plan.span)
    moved = relax.op.multiply(cx.position(axes), relax.const(plan.drift, "int64"))
    first = cx.emit(
        relax.op.add(cx.emit(moved, "start"), relax.const(plan.start, "int64")), "start"
    )
    places = cx.emit(relax.op.arange(0, plan.span, 1, "int64"), "places")
    places = cx.emit(relax.op.add(places, first), "places")
    return cx.emit(relax.op.take(x, places, axis=dim, mode="clip"), "rows")


def with_halo(cx: LocalCall, x: Any, dim: int, result_dim: int, window: Window, value: Any) -> Any:
    """Rows of a cut dim that the windows of my results read.

    Parameters
    ----------
    cx : LocalCall
        Its first operand is cut along ``dim``, its first result along ``result_dim``.
    x : variable
        The first operand's shard; other dims may have been extended already.
    dim, result_dim : int
    window : Window
    value : number
        What the op's padding holds.

    Returns
    -------
    rows : variable
        ``(B - 1) stride + reach`` rows along ``dim`` for B local results; no padding is left to
        the op along it.
    """
    own, out = cx.ins[0].shard, cx.outs[0]
    extent, result = own.whole[dim], out.whole[result_dim]
    axes = cx.axes_of_dim(0, dim)
    plan = exchange(window, extent, result, own.counts[dim])
    over = window.overhang(extent, result) > 0
    neutral = value == 0
    fill = None if neutral else cx.scalar(value, own.dtype)
    if over and dim in own.padded_dims and not (neutral and cx.ins[0].zero):
        kept = cx.scalar(value, own.dtype) if fill is None else fill
        x = cx.emit(relax.op.where(cx.valid(0, dim), x, kept), "kept")
    parts = _side(cx, x, dim, axes, plan.left, True, fill if window.before else None)
    parts.append(x)
    parts += _side(cx, x, dim, axes, plan.right, False, fill if over else None)
    if len(parts) > 1:
        x = cx.emit(relax.op.concat(parts, dim), "extended")
    x = _filled(cx, x, dim, plan, value)
    return _windowed(cx, x, dim, axes, plan)
