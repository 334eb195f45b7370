# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The writer of random modules: a pool of values, each with a bound and whether it is exact.

A value is *exact* when all its elements are integers whose sums its type holds, however they
are ordered: two devices and one must then agree bit for bit. Ops that jump (comparisons,
indices) only see exact values, so that a rounding never turns into another result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvm_distir.execution.runtime.program.io_layout import np_dtype

EXACT_BOUNDS = {"float64": 2.0**50, "float32": 2.0**23, "float16": 2.0**10, "bfloat16": 2.0**7}
"""By float type: what sums of integers may come to, a factor of 2 below where they are rounded."""

MOST = {"float64": 1e9, "float32": 1e9, "float16": 2e4, "bfloat16": 1e9}
"""By float type: largest magnitude of any value."""

NORM_DTYPES = ("float32", "float16")
"""What TVM's kernels of norms take."""

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


def typed_constant(values: np.ndarray, dtype: str) -> relax.Constant:
    """Values as a constant of a TVM dtype, bfloat16 included."""
    return relax.const(values.astype(np_dtype(dtype)), dtype)


class Writer:
    """Emits ops on random values of the pool.

    Parameters
    ----------
    rng : Generator
    builder : BlockBuilder
    dtype : str
        Float type of the module.
    callees : sequence of Callee
        What may be called.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        builder: relax.BlockBuilder,
        dtype: str = "float32",
        callees: Sequence[Callee] = (),
    ) -> None:
        self.rng, self.builder, self.callees = rng, builder, list(callees)
        self.dtype, self.exact_bound = dtype, EXACT_BOUNDS[dtype]
        self.pool: list[Item] = []
        self.in_dataflow = True

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

    def pick(self, fits: Callable[[Item], bool] = lambda _: True, dtype: str = "") -> Item:
        """A value of the pool, the newer the likelier."""
        expected = dtype or self.dtype
        matches = [item for item in self.pool if item.dtype == expected and fits(item)]
        recent = matches[-4:]
        return self.one_of(recent if self.chance(0.7) else matches)

    def smooth(self, least_rank: int = 1) -> Item:
        """A value that exponentials and norms may take: exact, or small."""
        return self.pick(
            lambda i: len(i.shape) >= least_rank and (i.exact or i.bound <= SMOOTH_BOUND)
        )

    def exact(self, least_rank: int = 0, dtype: str = "") -> Item:
        """A value whose elements are integers."""
        return self.pick(lambda i: i.exact and len(i.shape) >= least_rank, dtype)

    def axis(self, item: Item, fits: Callable[[int], bool] = lambda _: True) -> int:
        """A dim of a value whose size fits."""
        return int(self.one_of([d for d, n in enumerate(item.shape) if fits(n)]))

    def guard(self, shape: Sequence[int], bound: float) -> None:
        """Skip what is empty, or too large to run quickly or to compare."""
        if (
            not 0 < math.prod(shape) <= MOST_ELEMENTS
            or len(shape) > MOST_DIMS
            or bound > MOST[self.dtype]
        ):
            raise Skip

    def emit(self, expr: Any, sources: Sequence[Item], bound: float, exact: bool = True) -> Item:
        """Bind an expression of tensor type and put it into the pool."""
        value = self.builder.normalize(expr)
        shape = tuple(int(n) for n in value.ty.shape)
        self.guard(shape, bound)
        remaining = exact and bound < self.exact_bound and all(s.exact for s in sources)
        return self.hold(self.builder.emit(value), bound, remaining)

    def constant(self, low: int, high: int, shape: Sequence[int] = ()) -> relax.Constant:
        """Random integers of ``low..high``, both included, in the float type of the module."""
        return typed_constant(self.rng.integers(low, high + 1, tuple(shape)), self.dtype)

    def scalar(self, value: float) -> relax.Constant:
        """A constant without dims, in the float type of the module."""
        return typed_constant(np.array(value), self.dtype)

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
