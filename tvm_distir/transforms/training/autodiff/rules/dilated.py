# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of dilated pools, a window element at a time, as TVM has no kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    add,
    equal,
    logical_and,
    logical_not,
    logical_or,
    multiply,
    slice_scatter,
    strided_slice,
    where,
    zeros,
)

from .registry import array_like, constant_like, padded, shape_of


@dataclass(frozen=True)
class WindowRange:
    """Range that dilated windows read along a dim.

    Attributes
    ----------
    dim, rows, count : int
        The dim, its rows, and how many windows there are along it.
    kernel, stride, dilation, before, after : int
    """

    dim: int
    rows: int
    count: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @staticmethod
    def along(
        dims: Sequence[int], data: Expr, result: Expr, *steps: Iterable[Any]
    ) -> list[WindowRange]:
        """Return the ranges along some dims, given the steps from kernels to padding for each."""
        rows, counts = ([int(shape_of(value)[d]) for d in dims] for value in (data, result))
        each = zip(dims, rows, counts, *(map(int, values) for values in steps), strict=True)
        return [WindowRange(*fields) for fields in each]

    @property
    def padded(self) -> int:
        """Return the number of rows, with the padding and the rows that windows read beyond it."""
        end = (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return max(self.before + self.rows + self.after, end)

    @property
    def behind(self) -> int:
        """Return the number of rows behind the data: the padding, and what windows read beyond."""
        return self.padded - self.before - self.rows

    def read(self, element: int) -> tuple[int, int]:
        """Return the first row, and the end, of a single element of all windows."""
        low = element * self.dilation
        return low, low + (self.count - 1) * self.stride + 1

    def shares(self, include: bool) -> np.ndarray:
        """Return the reciprocal of the number of elements that an average counts per window."""
        positions = np.arange(self.count)[:, None] * self.stride - self.before
        positions = positions + np.arange(self.kernel) * self.dilation
        low, high = (-self.before, self.rows + self.after) if include else (0, self.rows)
        return np.asarray(1 / np.maximum(((positions >= low) & (positions < high)).sum(1), 1))


def weighted(
    grad: Expr, reaches: Sequence[WindowRange], weights: Sequence[np.ndarray], builder: BlockBuilder
) -> Expr:
    """Multiply the gradient of each window by weights along each dim."""
    for r, weight in zip(reaches, weights, strict=True):
        wide = [r.count if d == r.dim else 1 for d in range(len(shape_of(grad)))]
        grad = builder.emit(multiply(grad, array_like(weight.reshape(wide), grad, builder)))
    return grad


def _spread(
    part: Var, reaches: Sequence[WindowRange], elements: Sequence[int], builder: BlockBuilder
) -> Var:
    """Place a value per window at a single element in zeros like the padded data."""
    for r, element in zip(reaches, elements, strict=True):
        low, high = r.read(element)
        shape = list(shape_of(part))
        shape[r.dim] = r.padded
        empty = builder.emit(zeros(shape, str(part.ty.dtype)))
        part = builder.emit(slice_scatter(empty, part, low, high, r.stride, r.dim))
    return part


def of_windows(
    y: Var,
    grad: Expr,
    x: Expr,
    reaches: Sequence[WindowRange],
    lowest: float | None,
    include: bool,
    builder: BlockBuilder,
) -> Expr:
    """Write the gradient of a pool's data.

    Parameters
    ----------
    y, grad, x : Var
        Result, its gradient, and the data.
    reaches : sequence of WindowRange
    lowest : float, optional
        The value of the padding of a maximum; None for an average.
    include : bool
        Whether averages count the padding.
    """
    dims = [r.dim for r in reaches]
    if lowest is None:
        grad = weighted(grad, reaches, [r.shares(include) for r in reaches], builder)
    else:
        x = builder.emit(padded(x, {r.dim: (r.before, r.behind) for r in reaches}, lowest))
    total, covered = None, None
    for elements in itertools.product(*(range(r.kernel) for r in reaches)):
        part = grad
        if lowest is not None:
            ends = [r.read(e) for r, e in zip(reaches, elements, strict=True)]
            read = strided_slice(
                x, dims, [low for low, _ in ends], [end for _, end in ends],
                [r.stride for r in reaches],
            )  # fmt: skip
            mine = builder.emit(equal(builder.emit(read), y))
            if covered is None:
                covered = mine
            else:
                known = covered if isinstance(covered, ir.Var) else builder.emit(covered)
                covered = logical_or(known, mine)
                mine = builder.emit(logical_and(mine, logical_not(known)))
            part = builder.emit(where(mine, grad, constant_like(0.0, grad)))
        spread = _spread(part, reaches, elements, builder)
        total = spread if total is None else builder.emit(add(total, spread))
    begin = [r.before for r in reaches]
    return strided_slice(total, dims, begin, [r.before + r.rows for r in reaches])
