# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Relate the dims of gathers and scatters, and compute flat indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import dtype_of, shape_of

from .emitter import Emitter
from .translated_values import constant, integers

_op = relax.op


@dataclass(frozen=True)
class IndexDims:
    """Positions of a table that a gather reads, or a scatter writes.

    Attributes
    ----------
    table : tuple of int
        Shape of the table.
    sizes : list of int
        The shape of a window of it.
    result : tuple of int
        Shape of what is read or written.
    vector : int
        The dim of the indices that holds an index.
    windows : list of int
        Dims of the result that are dims of a window.
    dropped : list of int
        Dims of the table that a window has none for.
    indexed : list of int
        Dims of the table that indices name.
    batch, index_batch : list of int
        Dims of the table and of the indices that go along with each other.
    """

    table: tuple[int, ...]
    sizes: list[int]
    result: tuple[int, ...]
    vector: int
    windows: list[int]
    dropped: list[int]
    indexed: list[int]
    batch: list[int]
    index_batch: list[int]

    @property
    def kept(self) -> list[int]:
        """Return the dims of the table that a window has."""
        return [i for i in range(len(self.table)) if i not in self.dropped + self.batch]

    @property
    def batches(self) -> list[int]:
        """Return the dims of the result that are dims of the indices."""
        return [i for i in range(len(self.result)) if i not in self.windows]

    @property
    def is_of_rows(self) -> bool:
        """Return whether full rows along a single dim are indexed."""
        if self.batch or len(self.indexed) != 1 or self.dropped != self.indexed:
            return False
        rest = enumerate(zip(self.sizes, self.table))
        return all(size == n for i, (size, n) in rest if i != self.indexed[0])

    @property
    def is_along_last(self) -> bool:
        """Return whether single elements along the last dim are indexed, row by row."""
        last = len(self.table) - 1
        front = list(range(last))
        return (
            self.batch == self.index_batch == front
            and self.indexed == [last]
            and not self.windows
            and all(size == 1 for size in self.sizes)
            and self.vector == len(self.result)
        )

    def row_indices(self, write: Emitter, indices: Expr) -> Expr:
        """Return the indices without the dim of the index vector of size 1."""
        shape = shape_of(indices)
        return write.reshape(indices, [n for i, n in enumerate(shape) if i != self.vector])

    def _column(self, write: Emitter, indices: Expr, position: int) -> Expr:
        """Return a component of every index, with its dims at their positions in the result."""
        shape = shape_of(indices)
        if self.vector < len(shape):
            begins, ends = [0] * len(shape), list(shape)
            begins[self.vector], ends[self.vector] = position, position + 1
            indices = write.slice(indices, begins, ends)
        sizes = [1] * len(self.result)
        for dim, size in zip(self.batches, [n for i, n in enumerate(shape) if i != self.vector]):
            sizes[dim] = size
        return write.reshape(indices, sizes)

    def flat(self, write: Emitter, indices: Expr, clip: bool) -> tuple[Expr, Expr | None]:
        """Return the index of every element of the result in the flat table.

        Returns
        -------
        positions : relax.Expr
            int64, of the shape of the result.
        inside : relax.Expr or None
            Whether each window is in the table, with dims of 1 for dims of windows; None with
            ``clip``, which moves windows into it.
        """
        strides = [math.prod(self.table[i + 1 :]) for i in range(len(self.table))]
        indices = write.cast(indices, "int64")
        total, inside = self._steps(strides), None
        for position, dim in enumerate(self.indexed):
            column = self._column(write, indices, position)
            highest = self.table[dim] - self.sizes[dim]
            if clip:
                column = write.clipped(column, highest)
            else:
                inside = _both(write, inside, column, highest)
            step = write.emit(_op.multiply(column, constant(strides[dim], "int64")))
            total = write.emit(_op.add(total, step))
        if shape_of(total) != self.result:
            total = write.emit(_op.broadcast_to(total, list(self.result)))
        return total, inside

    def _steps(self, strides: Sequence[int]) -> Expr:
        """Return the offsets within a window, and along batching dims."""
        rank = len(self.result)
        total = np.zeros([1] * rank, "int64")
        where = list(zip(self.windows, self.kept))
        rest = [i for i in range(rank + len(self.indexed)) if i != self.vector]
        where += [(self.batches[rest.index(i)], b) for b, i in zip(self.batch, self.index_batch)]
        for dim, source in where:
            sizes = [1] * rank
            sizes[dim] = self.result[dim]
            line = np.arange(self.result[dim], dtype="int64") * strides[source]
            total = total + line.reshape(sizes)
        return relax.const(total, "int64")


def _both(write: Emitter, inside: Expr, column: Expr, highest: int) -> Expr:
    zero, most = constant(0, dtype_of(column)), constant(highest, dtype_of(column))
    low = write.emit(_op.greater_equal(column, zero))
    high = write.emit(_op.less_equal(column, most))
    in_range = write.emit(_op.logical_and(low, high))
    return in_range if inside is None else write.emit(_op.logical_and(inside, in_range))


def inside_of(write: Emitter, indices: Expr, size: int) -> Expr:
    """Return which indices are within a number of rows."""
    return _both(write, None, indices, size - 1)


def index_dims_of(
    numbers: dict[str, Any],
    names: Sequence[str],
    table: Sequence[int],
    sizes: Sequence[int],
    result: Sequence[int],
) -> IndexDims:
    """Read the dimension numbers of a gather or a scatter, named in the order of fields."""
    dims = (integers(numbers.get(name)) for name in names)
    vector = int(numbers.get("index_vector_dim", 0))
    return IndexDims(tuple(table), list(sizes), tuple(result), vector, *dims)
