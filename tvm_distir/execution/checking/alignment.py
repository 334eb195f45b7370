# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find which value of the reference the values of ranks stand for.

Along each mesh axis the ranks hold copies, shards or partial sums (or maxima). Joined so, they are
a value of the reference, up to a factor that is a product of sizes of axes and of 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_distir.execution.runtime.program.tensors import Array

from .placing import Axes, Coordinates

REPLICATED, SHARDED, SUM, MAX = "replicated", "sharded", "sum", "max"
BLOCK = "a block of "
_BLOCK_ELEMENTS = 1 << 16
_MOST_STRIDE = 8
TOLERANCE = 1e-6
"""Relative difference of equal values: constants of traces are rounded to their float type."""


@dataclass(frozen=True)
class Layout:
    """Layout of a value over the ranks along an axis.

    Attributes
    ----------
    kind : str
        REPLICATED, SHARDED, SUM or MAX (parts to be reduced).
    dim : int
        The dim that is sharded.
    blocks : int
        The number of blocks of a shard, each contiguous in the value.
    """

    kind: str
    dim: int = 0
    blocks: int = 1

    def joined(self, parts: Sequence[Array]) -> Array:
        """Return the value that parts of ranks stand for."""
        if self.kind == REPLICATED:
            return parts[0]
        if self.kind in (SUM, MAX):
            stacked = np.stack(parts)
            return np.asarray(stacked.sum(0) if self.kind == SUM else stacked.max(0))
        if self.blocks == 1:
            return np.concatenate(parts, self.dim)
        shape = parts[0].shape
        split = [*shape[: self.dim], self.blocks, -1, *shape[self.dim + 1 :]]
        joined = np.concatenate([part.reshape(split) for part in parts], self.dim + 1)
        return joined.reshape([*shape[: self.dim], -1, *shape[self.dim + 1 :]])


@dataclass(frozen=True)
class State:
    """Value of the reference that values of ranks stand for.

    Attributes
    ----------
    reference : str
        The name of the value of the reference.
    layouts : dict of str to Layout
        By mesh axis.
    scale : float
        The factor by which it is greater.
    """

    reference: str
    layouts: dict[str, Layout] = field(default_factory=dict)
    scale: float = 1.0

    @property
    def partial(self) -> list[str]:
        """Return the axes along which a reduction is missing."""
        return [a for a, layout in self.layouts.items() if layout.kind in (SUM, MAX)]

    @property
    def sharding(self) -> dict[str, int]:
        """Return the dims that axes shard."""
        return {a: layout.dim for a, layout in self.layouts.items() if layout.kind == SHARDED}

    @property
    def is_right(self) -> bool:
        """Return whether the value is neither partial nor scaled."""
        return not self.partial and self.scale == 1

    def text(self) -> str:
        """Return the state in words."""
        words = []
        for axis, layout in self.layouts.items():
            if layout.kind == SHARDED:
                words.append(f"sharded along dim {layout.dim} over {axis}")
            elif layout.kind != REPLICATED:
                kind = "" if layout.kind == SUM else " (a maximum)"
                words.append(f"partial over {axis}{kind}")
        if self.scale != 1:
            words.append(f"times {self.scale:g}")
        return f"{self.reference} ({', '.join(words) or 'replicated'})"


class _SameSize:
    """Values of the reference of a size, found by a projection and a norm."""

    def __init__(self, entries: Sequence[tuple[str, Array]]) -> None:
        self.names = [name for name, _ in entries]
        self.rows = np.stack([value for _, value in entries])
        weights = np.random.default_rng(1).random(self.rows.shape[1]) + 0.5
        self.weights = weights
        self.projections, self.norms = self.rows @ weights, np.linalg.norm(self.rows, axis=1)

    def scales(self, value: Array) -> Iterator[tuple[str, float]]:
        """Yield the values that are equal up to a factor, and the factor."""
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = (value @ self.weights) / self.projections
            ratios = np.linalg.norm(value) / (np.abs(factors) * self.norms)
        tolerance = TOLERANCE * max(float(np.abs(value).max()), 1e-30)
        for i in np.flatnonzero(np.abs(ratios - 1) < 10 * TOLERANCE):
            if np.abs(self.rows[i] * factors[i] - value).max() < tolerance:
                yield self.names[i], float(factors[i])


class Aligner:
    """Finds values in those of a reference.

    Parameters
    ----------
    references : sequence of (str, array)
    axes : mapping of str to int
    micro_batches : sequence of int
        Further numbers whose products may be a factor.
    """

    def __init__(
        self, references: Sequence[tuple[str, Array]], axes: Axes, micro_batches: Sequence[int] = ()
    ) -> None:
        self._scales = _factors([n for n in (*axes.values(), *micro_batches) if n > 1])
        self._references = [(n, v) for n, v in references if v.dtype.kind == "f" and v.size]
        sizes: dict[int, list[tuple[str, Array]]] = {}
        for name, value in self._references:
            if np.abs(value).max() > 0:
                sizes.setdefault(value.size, []).append((name, value.ravel()))
        self._sizes = {size: _SameSize(entries) for size, entries in sizes.items()}
        self._blocks: dict[tuple[int, ...], list[tuple[str, Array]]] = {}

    def find(self, values: Mapping[Coordinates, Array], axes: Axes) -> State | None:
        """Return the state of the values of ranks at their coordinates, or None."""
        first = next(iter(values.values()))
        if first.dtype.kind != "f" or any(v.shape != first.shape for v in values.values()):
            return None
        if not all(np.isfinite(v).all() for v in values.values()):
            return None
        if not any(np.abs(v).max() > 0 for v in values.values() if v.size):
            return State("zero", {axis: Layout(REPLICATED) for axis in axes})
        best, names = None, [axis for axis in axes if axes[axis] > 1]
        for order in (names, names[::-1])[: 1 if len(names) < 2 else 2]:
            for state in self._search(dict(values), order, {}):
                if state.scale == 1:
                    return state
                best = best or state
        return best or self._block(list(values.values()))

    def _lookup(self, value: Array) -> tuple[str, float] | None:
        best: tuple[str, float] | None = None
        known = self._sizes.get(value.size)
        for name, factor in () if known is None else known.scales(value.ravel()):
            scale = next((s for s in self._scales if abs(factor / s - 1) < TOLERANCE), None)
            if scale == 1:
                return name, 1.0
            unique = value.size > 2 or (known is not None and len(known.names) == 1)
            if scale is not None and unique:
                if best is None or self._scales.index(scale) < self._scales.index(best[1]):
                    best = name, scale
        return best

    def _search(
        self, values: dict[Coordinates, Array], axes: list[str], layouts: dict[str, Layout]
    ) -> Iterator[State]:
        if not axes:
            hit = self._lookup(next(iter(values.values())))
            if hit is not None:
                yield State(hit[0], layouts, hit[1])
            return
        *others, axis = axes
        rows = _rows(values, axis)
        if all(_equal(part, parts[0]) for parts in rows.values() for part in parts[1:]):
            copies = {at: parts[0] for at, parts in rows.items()}
            yield from self._search(copies, others, {**layouts, axis: Layout(REPLICATED)})
            return
        first = next(iter(values.values()))
        count = len(next(iter(rows.values())))
        left = [len({dict(at)[b] for at in values}) for b in others]
        for layout in _layouts(first.shape):
            size = first.size * (count if layout.kind == SHARDED else 1)
            if self._has_multiple(size, left):
                joined = {at: layout.joined(parts) for at, parts in rows.items()}
                if layout.kind == MAX and any(
                    np.array_equal(part, joined[at]) for at, parts in rows.items() for part in parts
                ):
                    continue  # the maximum is the value of a rank, and says nothing of the others
                yield from self._search(joined, others, {**layouts, axis: layout})

    def _has_multiple(self, size: int, counts: Sequence[int]) -> bool:
        """Return whether a reference has a size that further joins may give."""
        choices = itertools.product(*((1, n) for n in counts))
        return any(size * math.prod(choice) in self._sizes for choice in choices)

    def _block(self, values: Sequence[Array]) -> State | None:
        """Return the state of values each of which is a block of the same reference."""
        shape = values[0].shape
        if len(shape) == 0 or values[0].size < 3 or len(self._references) < 2:
            return None
        if shape not in self._blocks:
            self._blocks[shape] = [
                (name, _split_in_blocks(value, shape))
                for name, value in self._references
                if _divides(shape, value)
            ]
        for name, blocks in self._blocks[shape]:
            if all(_is_among(value.ravel(), blocks) for value in values):
                return State(BLOCK + name)
        return None


def _factors(counts: Sequence[int]) -> list[float]:
    """Return products of numbers of ranks and of 2, those next to 1 first."""
    powers = itertools.product(range(-2, 3), repeat=len(counts))
    products = {math.prod(float(n) ** e for n, e in zip(counts, p)) for p in powers}
    twice = {s * t for n in (1, *counts) for s in (n, 1 / n) for t in (2.0, 0.5)}
    return sorted(products | twice, key=lambda s: (abs(math.log(s)), s))


def _equal(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, rtol=1e-10, atol=1e-14))


def _rows(values: Mapping[Coordinates, Array], axis: str) -> dict[Coordinates, list[Array]]:
    """Return the values along an axis, by the other coordinates."""
    rows: dict[Coordinates, list[tuple[int, Array]]] = {}
    for at, value in values.items():
        other = tuple((a, x) for a, x in at if a != axis)
        rows.setdefault(other, []).append((dict(at)[axis], value))
    return {at: [v for _, v in sorted(row, key=lambda t: t[0])] for at, row in rows.items()}


def _layouts(shape: Sequence[int]) -> Iterator[Layout]:
    """Yield the layouts of a value that is not replicated, the usual ones first."""
    yield from (Layout(SHARDED, dim) for dim in range(len(shape)))
    yield from (Layout(SUM), Layout(MAX))
    for dim, size in enumerate(shape):
        for blocks in range(2, min(size, _MOST_STRIDE + 1)):
            if size % blocks == 0:
                yield Layout(SHARDED, dim, blocks)


def _divides(shape: Sequence[int], value: Array) -> bool:
    if value.ndim != len(shape) or value.size > _BLOCK_ELEMENTS or value.shape == tuple(shape):
        return False
    return all(full % part == 0 for full, part in zip(value.shape, shape))


def _split_in_blocks(value: Array, shape: Sequence[int]) -> Array:
    counts = [full // part for full, part in zip(value.shape, shape)]
    split = value.reshape([n for pair in zip(counts, shape) for n in pair])
    order = [*range(0, 2 * len(shape), 2), *range(1, 2 * len(shape), 2)]
    return split.transpose(order).reshape(-1, math.prod(shape))


def _is_among(value: Array, rows: Array) -> bool:
    return bool((np.abs(rows - value).max(1) < TOLERANCE * np.abs(value).max()).any())
