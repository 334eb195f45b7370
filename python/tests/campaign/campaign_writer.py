# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The writer of random modules: a pool of values, each with a bound and whether it is exact.

A value is *exact* when all its elements are integers below 2**23 in magnitude, however their
sums are ordered: two devices and one must then agree bit for bit. Ops that jump (comparisons,
indices) only see exact values, so that a rounding never turns into another result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

EXACT_BOUND = 2.0**23
SMOOTH_BOUND = 30.0
MOST_ELEMENTS = 6000
MOST_DIMS = 5
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
SIZE_WEIGHTS = (0.05, 0.1, 0.1, 0.2, 0.05, 0.1, 0.03, 0.22, 0.1, 0.05)


@dataclass(frozen=True)
class Item:
    """A tensor in scope: its variable, type, largest magnitude, and whether it is exact."""

    var: Any
    shape: tuple[int, ...]
    dtype: str
    bound: float
    exact: bool


@dataclass(frozen=True)
class Callee:
    """A private function: its parameters (shapes; a nested tuple of them) and results."""

    gv: Any
    params: tuple[Any, ...]
    results: Any


class Skip(Exception):
    """The op drawn does not fit what is in the pool."""


class Writer:
    """Emits ops on random values of the pool.

    Parameters
    ----------
    rng : Generator
    builder : BlockBuilder
    callees : sequence of Callee
        What may be called.
    """

    def __init__(
        self, rng: np.random.Generator, builder: relax.BlockBuilder, callees: Sequence[Callee] = ()
    ) -> None:
        self.rng, self.builder, self.callees = rng, builder, list(callees)
        self.pool: list[Item] = []

    def draw(self, low: int, high: int) -> int:
        """An integer of ``low..high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        """True in that share of cases."""
        return bool(self.rng.random() < share)

    def one_of(self, items: Sequence[Any]) -> Any:
        """One item at random; Skip when there is none."""
        if not items:
            raise Skip
        return items[int(self.rng.integers(len(items)))]

    def pick(self, fits: Callable[[Item], bool] = lambda _: True, dtype: str = "float32") -> Item:
        """A value of the pool, the newer the likelier."""
        found = [item for item in self.pool if item.dtype == dtype and fits(item)]
        recent = found[-4:]
        return self.one_of(recent if self.chance(0.7) else found)

    def smooth(self, least_rank: int = 1) -> Item:
        """A value that exponentials and norms may take: exact, or small."""
        return self.pick(
            lambda i: len(i.shape) >= least_rank and (i.exact or i.bound <= SMOOTH_BOUND)
        )

    def exact(self, least_rank: int = 0, dtype: str = "float32") -> Item:
        """A value whose elements are integers."""
        return self.pick(lambda i: i.exact and len(i.shape) >= least_rank, dtype)

    def axis(self, item: Item, fits: Callable[[int], bool] = lambda _: True) -> int:
        """A dim of a value whose size fits."""
        return int(self.one_of([d for d, n in enumerate(item.shape) if fits(n)]))

    def guard(self, shape: Sequence[int], bound: float) -> None:
        """Skip what is too large to run quickly or to compare."""
        if math.prod(shape) > MOST_ELEMENTS or len(shape) > MOST_DIMS or bound > 1e9:
            raise Skip

    def emit(self, expr: Any, sources: Sequence[Item], bound: float, exact: bool = True) -> Item:
        """Bind an expression of tensor type and put it into the pool."""
        value = self.builder.normalize(expr)
        shape = tuple(int(n) for n in value.ty.shape)
        self.guard(shape, bound)
        kept = exact and bound < EXACT_BOUND and all(s.exact for s in sources)
        return self.hold(self.builder.emit(value), bound, kept)

    def hold(self, var: Any, bound: float, exact: bool) -> Item:
        """Put a bound variable into the pool."""
        item = Item(
            var, tuple(int(n) for n in var.ty.shape), str(var.ty.dtype), float(bound), exact
        )
        self.pool.append(item)
        return item

    def bind(self, expr: Any) -> Any:
        """Bind an expression that stays out of the pool (a tuple)."""
        return self.builder.emit(expr)
