# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes statistics over sharded dims, reduced over the devices without the padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators import ops

from .call import LocalCall

WIDE = "float32"


NARROW = ("float16", "bfloat16")


def cutting_axes(cx: LocalCall, dims: Sequence[int], number: int = 0) -> tuple[int, ...]:
    """Return the mesh axes that shard any of some dims of an operand, in mesh order."""
    return tuple(sorted({axis for d in dims for axis in cx.axes_of_dim(number, d)}))


def fill_padding(cx: LocalCall, x: ir.Expr, dims: Sequence[int], value: Any, dtype: str) -> ir.Expr:
    """Put a value into the padding of some dims of (a value derived from) the first operand."""
    for d in dims:
        if d in cx.ins[0].shard.padded_dims:
            x = cx.emit(relax.op.where(cx.valid(0, d), x, cx.scalar(value, dtype)), "kept")
    return x


def reduced(cx: LocalCall, x: ir.Expr, axes: Sequence[int], kind: str, hint: str) -> ir.Expr:
    """Reduce a statistic over the devices along mesh axes."""
    return x if not axes else cx.emit(ops.all_reduce(x, cx.mesh, list(axes), kind), hint)


class Moments:
    """Mean and variance over dims of the first operand, some of which are sharded.

    Parameters
    ----------
    cx : LocalCall
    x : variable
        The first operand, perhaps in a wider dtype or with dims split.
    dims : sequence of int
        Dims of ``x``.
    axes : sequence of int
        Mesh axes that cut them.
    count : int, optional
        Elements of the full tensor that a statistic covers, where ``x`` has its dims split.
    clean : bool
        The padding of these dims holds zeros already.
    """

    def __init__(
        self,
        cx: LocalCall,
        x: ir.Expr,
        dims: Sequence[int],
        axes: Sequence[int],
        count: int | None = None,
        clean: bool = False,
    ) -> None:
        self.cx, self.x, self.dims, self.axes, self.clean = cx, x, list(dims), axes, clean
        self.dtype = str(x.ty.dtype)
        if count is None:
            count = math.prod(cx.ins[0].shard.global_shape[d] for d in dims)
        self.count = cx.scalar(count, self.dtype)

    def _neutral(self, value: ir.Expr) -> ir.Expr:
        return value if self.clean else fill_padding(self.cx, value, self.dims, 0, self.dtype)

    def total(self, value: ir.Expr, hint: str) -> ir.Expr:
        """Return the sum over the dims and the devices, with dims kept."""
        part = self.cx.emit(relax.op.sum(value, self.dims, keepdims=True), hint)
        return reduced(self.cx, part, self.axes, "sum", hint)

    def average(self, value: ir.Expr, hint: str) -> ir.Expr:
        """Return the mean over the dims and the devices, with dims kept."""
        return self.cx.emit(relax.op.divide(self.total(value, hint), self.count), hint)

    def centred(self) -> tuple[Any, Any, Any]:
        """Return mean, ``x - mean`` (zero in the padding) and the mean of its squares."""
        cx = self.cx
        mean = self.average(self._neutral(self.x), "mean")
        centered = cx.emit(relax.op.subtract(self.x, mean), "apart")
        inner = self._neutral(centered)
        squares = cx.emit(relax.op.multiply(inner, inner), "squares")
        return mean, centered, self.average(squares, "variance")

    def sums(self) -> tuple[Any, Any]:
        """Return the mean and ``E[x^2] - mean^2``; a single collective reduces both sums."""
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
        parts = cx.emit(relax.op.split(pair, 2, 0), "halves")
        mean, square = (
            cx.emit(relax.op.reshape(cx.emit(relax.TupleGetItem(parts, i)), shape), "mean")
            for i in (0, 1)
        )
        away = cx.emit(relax.op.multiply(mean, mean), "square")
        return mean, cx.emit(relax.op.subtract(square, away), "variance")


def widened(cx: LocalCall, x: ir.Expr) -> ir.Expr:
    """Cast ``x`` to float32 where its dtype is narrower."""
    return cx.emit(relax.op.astype(x, WIDE), "wide") if str(x.ty.dtype) in NARROW else x
