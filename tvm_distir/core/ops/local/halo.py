# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Exchanges halos, so that a device has all rows that the windows of its results read.

Boundary rows travel by ``collective_permute``: a message per neighbour that has some, several on a
side when more rows are needed than a shard holds. A padding that the op would have put around
the full tensor is put where it belongs: by the exchange itself, which delivers zeros at the
border, or else by a mask. Gradients also go the other way: rows computed for a neighbour are
returned to it, who adds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.ir import Expr

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ops.windows.halo import Exchange

from .call import LocalCall
from .positions import RowsKey


def fetched(cx: LocalCall, x: Expr, axes: Sequence[int], hop: int) -> Expr:
    """Fetch ``x`` of the rank ``hop`` places before (behind when negative), else zeros.

    Places are counted along a dim cut by ``axes``, major first. With several axes the rank that
    many places away is at either of two distances; both are asked.
    """
    axis, size = axes[-1], int(cx.mesh.shape[axes[-1]])
    if len(axes) == 1:
        if not hop:
            return x
        return cx.emit(ops.collective_permute(x, cx.mesh, axis, hop), "rows")
    major, minor = divmod(hop, size)
    near = cx.emit(ops.collective_permute(x, cx.mesh, axis, minor), "rows") if minor else x
    near = fetched(cx, near, axes[:-1], major)
    if not minor:
        return near
    far = cx.emit(ops.collective_permute(x, cx.mesh, axis, minor - size), "rows")
    far = fetched(cx, far, axes[:-1], major + 1)
    mine = cx.emit(ops.axis_index(cx.mesh, axis), "axis_index")
    close = cx.emit(relax.op.greater_equal(mine, relax.const(minor, "int64")), "close")
    return cx.emit(relax.op.where(close, near, far), "rows")


def block(cx: LocalCall, x: Expr, dim: int, begin: int, end: int) -> Expr:
    """Slice rows of a tensor."""
    if begin == 0 and end == int(x.ty.shape[dim]):
        return x
    return cx.emit(relax.op.strided_slice(x, [dim], [begin], [end]), "rows")


def _side(
    cx: LocalCall, x: Expr, dim: int, axes: Sequence[int], count: int, before: bool, value: Any
) -> list[Expr]:
    """Fetch ``count`` rows of the ranks before (behind) in order; ``value`` beyond the ends.

    ``value`` is zero also when what arrives at the border does not matter. What was fetched of a
    tensor is not fetched again: a gradient reads the rows that its forward op read.
    """
    rows, ranks = int(x.ty.shape[dim]), ranks_along(cx, axes)
    parts: list[Expr] = []
    hop = 1
    while count > 0 and hop < ranks:
        rows_sent = min(count, rows)
        key = RowsKey(x, dim, tuple(axes), hop if before else -hop, rows_sent, float(value))
        if key not in cx.memo.rows:
            edge = block(
                cx, x, dim, rows - rows_sent if before else 0, rows if before else rows_sent
            )
            part = fetched(cx, edge, axes, hop if before else -hop)
            cx.memo.rows[key] = (
                part if value == 0 else _bordered(cx, part, axes, hop, before, value)
            )
        part = cx.memo.rows[key]
        parts = [part, *parts] if before else [*parts, part]
        count, hop = count - rows_sent, hop + 1
    return parts


def _bordered(
    cx: LocalCall, part: Expr, axes: Sequence[int], hop: int, before: bool, value: Any
) -> Expr:
    """Fetch rows from ``hop`` places away, with ``value`` where there is no such rank."""
    position = cx.position(axes)
    if before:
        in_range = relax.op.greater_equal(position, relax.const(hop, "int64"))
    else:
        in_range = relax.op.less(position, relax.const(ranks_along(cx, axes) - hop, "int64"))
    fill = cx.scalar(value, str(part.ty.dtype))
    return cx.emit(relax.op.where(cx.emit(in_range, "there"), part, fill), "rows")


def _filled(cx: LocalCall, x: Expr, dim: int, plan: Exchange, value: Any) -> Expr:
    """Put the filler rows around the fetched rows."""
    if not plan.low and not plan.high:
        return x
    if math.isfinite(value):
        return with_rows(cx, x, dim, plan.low, plan.high, value)
    shape = [int(n) for n in x.ty.shape]
    fill, parts = cx.scalar(value, str(x.ty.dtype)), [x]  # infinite attributes have no text
    for count, at in ((plan.low, 0), (plan.high, 2)):
        if count:
            shape[dim] = count
            parts.insert(at, cx.emit(relax.op.broadcast_to(fill, shape), "fill"))
    return cx.emit(relax.op.concat(parts, dim), "rows")


def with_rows(cx: LocalCall, x: Expr, dim: int, front: int, back: int, value: Any = 0) -> Expr:
    """Put rows of a finite value around a tensor; negative counts leave rows out."""
    if not front and not back:
        return x
    widths = [0] * (2 * len(x.ty.shape))
    widths[2 * dim], widths[2 * dim + 1] = front, back
    return cx.emit(relax.op.nn.pad(x, widths, pad_value=float(value)), "rows")


def _steps(cx: LocalCall, plan: Exchange, axes: Sequence[int]) -> Expr:
    """Return ``rank drift + phase``, a scalar."""
    moved = relax.op.multiply(cx.position(axes), relax.const(plan.drift, "int64"))
    if not plan.phase:
        return cx.emit(moved, "moved")
    return cx.emit(relax.op.add(cx.emit(moved, "moved"), relax.const(plan.phase, "int64")), "moved")


def _start(cx: LocalCall, plan: Exchange, axes: Sequence[int]) -> Expr:
    """Return where the rows that the local op reads start in the extended shard, a scalar."""
    moved = _steps(cx, plan, axes)
    if plan.per != 1:
        moved = cx.emit(relax.op.floor_divide(moved, relax.const(plan.per, "int64")), "moved")
    return cx.emit(relax.op.add(moved, relax.const(plan.start, "int64")), "start")


def _counted(cx: LocalCall, count: int, first: Expr) -> Expr:
    """Return consecutive numbers that start at the scalar ``first``."""
    positions = cx.emit(relax.op.arange(0, count, 1, "int64"), "places")
    return cx.emit(relax.op.add(positions, first), "places")


def _windowed(cx: LocalCall, x: Expr, dim: int, axes: Sequence[int], plan: Exchange) -> Expr:
    """Slice the rows out that the local windows read."""
    if not plan.drift:
        start = plan.start + plan.phase // plan.per
        return block(cx, x, dim, start, start + plan.span)
    positions = _counted(cx, plan.span, _start(cx, plan, axes))
    return cx.emit(relax.op.take(x, positions, axis=dim, mode="clip"), "rows")


def ranks_along(cx: LocalCall, axes: Sequence[int]) -> int:
    """Return how many devices the mesh axes have together."""
    return math.prod(int(cx.mesh.shape[a]) for a in axes)


def without_padding(cx: LocalCall, number: int, x: Expr, dim: int, value: Any = 0) -> Expr:
    """Put ``value`` into the padding of a dim of an operand's shard ``x``, perhaps extended."""
    shard = cx.ins[number].shard
    if dim not in shard.padded_dims or (value == 0 and cx.ins[number].zero):
        return x
    fill = cx.scalar(value, shard.dtype)
    return cx.emit(relax.op.where(cx.valid(number, dim), x, fill), "kept")


def with_halo(
    cx: LocalCall, number: int, x: Expr, dim: int, plan: Exchange, value: Any = 0
) -> Expr:
    """Return the rows of an operand's sharded dim that the local results read.

    Parameters
    ----------
    cx : LocalCall
    number : int
        The operand.
    x : variable
        The shard of the operand; other dims may have been extended already.
    dim : int
        The dim, cut.
    plan : Exchange
    value : number
        The value of the op's padding.

    Returns
    -------
    rows : variable
        ``plan.span`` rows along ``dim``; no padding is left to the op along it.
    """
    axes = cx.axes_of_dim(number, dim)
    if plan.behind:
        x = without_padding(cx, number, x, dim, value)
    parts = _side(cx, x, dim, axes, plan.left, True, value if plan.in_front else 0)
    parts.append(x)
    parts += _side(cx, x, dim, axes, plan.right, False, value if plan.behind else 0)
    if len(parts) > 1:
        x = cx.emit(relax.op.concat(parts, dim), "extended")
    x = _filled(cx, x, dim, plan, value)
    return _windowed(cx, x, dim, axes, plan)


def picked(cx: LocalCall, y: Expr, dim: int, axes: Sequence[int], plan: Exchange) -> Expr:
    """Slice the local block of a first result that starts at a rank-dependent position."""
    per = relax.const(plan.per, "int64")
    first = cx.emit(relax.op.floor_mod(_steps(cx, plan, axes), per), "first")
    positions = _counted(cx, cx.outs[0].local[dim], first)
    return cx.emit(relax.op.take(y, positions, axis=dim, mode="clip"), "rows")


def returned(cx: LocalCall, y: Expr, dim: int, axes: Sequence[int], plan: Exchange) -> Expr:
    """Return results for neighbours' rows to their ranks; the reverse of :func:`with_halo`.

    Parameters
    ----------
    cx : LocalCall
    y : variable
        Terms for the ``plan.span`` rows along ``dim`` that :func:`with_halo` gives.
    dim : int
    axes : sequence of int
        Mesh axes that shard the result along ``dim``.
    plan : Exchange

    Returns
    -------
    rows : variable
        The sum of all ranks' terms for my ``plan.rows`` rows.
    """
    if plan.drift:
        y = with_rows(cx, y, dim, 1, 1)  # rows that are not there are zeros
        first = cx.emit(relax.op.subtract(relax.const(1, "int64"), _start(cx, plan, axes)), "first")
        positions = _counted(cx, plan.extended, first)
        positions = cx.emit(relax.op.clip(positions, 0, plan.span + 1), "places")
        y = cx.emit(relax.op.take(y, positions, axis=dim, mode="clip"), "rows")
    else:
        y = with_rows(cx, y, dim, plan.start, plan.extended - plan.start - plan.span)
    begin = plan.low + plan.left
    end = begin + plan.rows
    mine = block(cx, y, dim, begin, end)
    mine = _added(cx, mine, block(cx, y, dim, plan.low, begin), dim, axes, True)
    return _added(cx, mine, block(cx, y, dim, end, end + plan.right), dim, axes, False)


def _added(
    cx: LocalCall, mine: Expr, beyond: Expr, dim: int, axes: Sequence[int], before: bool
) -> Expr:
    """Send rows beyond the first (last) local row to their ranks, and add the received rows."""
    rows, count = int(mine.ty.shape[dim]), int(beyond.ty.shape[dim])
    hop = 1
    while count > 0 and hop < ranks_along(cx, axes):
        rows_sent = min(count, rows)
        total = int(beyond.ty.shape[dim])
        at = count - rows_sent if before else total - count
        part = fetched(
            cx, block(cx, beyond, dim, at, at + rows_sent), axes, -hop if before else hop
        )
        rest = rows - rows_sent
        part = with_rows(cx, part, dim, rest if before else 0, 0 if before else rest)
        mine = cx.emit(relax.op.add(mine, part), "sum")
        count, hop = count - rows_sent, hop + 1
    return mine
