# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Integer cost tables, each kept once, and exact minimisation by variable elimination.

A table loses its minimum (carried as a constant) and is interned, so that equal parts of a
model give the same table numbers; sums and bucket joins are memoised on those numbers. A
repeated layer then costs dictionary look-ups.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .cost import INFINITE

Scope = tuple[int, ...]
Factors = dict[Scope, int]
Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Eliminated:
    """One eliminated variable: how to read its value off its neighbours' values."""

    variable: int
    neighbours: list[int]
    best: list[int]
    strides: tuple[int, ...]


@dataclass
class Elimination:
    """Outcome: the trace for decoding, the tables that stay, the constant taken out.

    ``feasible`` is false when some variable has no value its neighbours allow.
    """

    trace: list[Eliminated]
    factors: Factors
    constant: int
    feasible: bool = True


class Tables:
    """Interned tables; lives for one propagation."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._ids: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}
        self._buckets: dict[Any, tuple[tuple[int, int], list[int], tuple[int, ...]]] = {}
        self.joins = 0

    def intern(self, array: Array) -> tuple[int, int]:
        """Number of a table with its minimum taken out, and that minimum.

        A table without a finite entry keeps its entries.
        """
        low = int(array.min())
        low = 0 if low >= INFINITE else low
        array = np.where(array >= INFINITE, INFINITE, array - low)
        key = (array.shape, array.tobytes())
        if key not in self._ids:
            self._ids[key] = len(self.arrays)
            self.arrays.append(array)
        return self._ids[key], low

    def table(self, rows: Any) -> tuple[int, int]:
        """Intern nested lists; dims of size 1 are dropped (their node has no variable)."""
        array = np.minimum(np.array(rows, dtype=np.int64), INFINITE)
        return self.intern(array.reshape([n for n in array.shape if n > 1]))

    def add(self, first: int, second: int) -> tuple[int, int]:
        """Interned sum of two tables over the same scope."""
        key = (first, second)
        hit = self._sums.get(key)
        if hit is None:
            total = np.minimum(self.arrays[first] + self.arrays[second], INFINITE)
            hit = self._sums[key] = self.intern(total)
        return hit

    def forbids(self, factors: Factors, values: Sequence[int]) -> bool:
        """Whether an assignment hits an infinite entry."""
        return any(
            self.arrays[t][tuple(values[v] for v in scope)] >= INFINITE
            for scope, t in factors.items()
        )

    def value(self, factors: Factors, values: Sequence[int]) -> int:
        """Sum of the tables at an assignment."""
        return sum(
            int(self.arrays[t][tuple(values[v] for v in scope)]) for scope, t in factors.items()
        )

    def eliminate(
        self,
        domains: Sequence[int],
        factors: Factors,
        keep: Collection[int] = (),
        limit: int = INFINITE,
        near: int | None = None,
    ) -> Elimination:
        """Minimise variables out, smallest bucket first (ties: lowest number).

        Parameters
        ----------
        domains : sequence of int
            Number of alternatives per variable.
        factors : dict of scope to table number
            Consumed. Scopes are sorted tuples of variables.
        keep : collection of int
            Variables that stay.
        limit : int
            A variable whose bucket has more entries stays as well.
        near : int, optional
            A variable with more neighbours stays as well.
        """
        return _Eliminator(self, domains, factors, keep, limit, near).run()

    def decode(self, trace: Sequence[Eliminated], values: list[int]) -> list[int]:
        """Fill in the eliminated variables, backwards."""
        for step in reversed(trace):
            at = sum(values[u] * s for u, s in zip(step.neighbours, step.strides))
            values[step.variable] = step.best[at]
        return values

    def join(
        self, key: tuple[tuple[int, ...], ...], shape: list[int], size: int
    ) -> tuple[tuple[int, int], list[int], tuple[int, ...]]:
        """Sum a bucket's tables over (neighbours..., variable), minimise over the variable.

        ``key`` holds per table its number and the position of each of its dims among the
        neighbours, -1 for the variable itself.
        """
        hit = self._buckets.get(key)
        if hit is not None:
            return hit
        self.joins += 1
        total = np.zeros((*shape, size), dtype=np.int64)
        for number, *positions in key:
            at = [len(shape) if p < 0 else p for p in positions]
            order = sorted(range(len(at)), key=at.__getitem__)
            full = [1] * total.ndim
            for p, n in zip(at, self.arrays[number].shape):
                full[p] = n
            total += self.arrays[number].transpose(order).reshape(full)
            np.minimum(total, INFINITE, out=total)
        best = total.argmin(axis=-1)  # the first minimum: alternatives are listed by preference
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        hit = self.intern(total.min(axis=-1)), best.ravel().tolist(), strides
        self._buckets[key] = hit
        return hit


class _Eliminator:
    """One elimination: scopes and neighbours kept up to date as variables go."""

    def __init__(
        self,
        tables: Tables,
        domains: Sequence[int],
        factors: Factors,
        keep: Collection[int],
        limit: int,
        near: int | None = None,
    ) -> None:
        self.tables, self.domains, self.factors = tables, domains, factors
        self.keep, self.limit, self.most = set(keep), limit, near
        self.scopes: list[set[Scope]] = [set() for _ in domains]
        self.near: list[set[int]] = [set() for _ in domains]
        for scope in factors:
            for v in scope:
                self.scopes[v].add(scope)
                self.near[v].update(scope)
        for v, neighbours in enumerate(self.near):
            neighbours.discard(v)
        self.constant = 0
        self.feasible = True
        self.trace: list[Eliminated] = []

    def bucket(self, v: int) -> int:
        """Entries of the table joined when ``v`` goes."""
        size = self.domains[v]
        for u in self.near[v]:
            size *= self.domains[u]
        return size

    def run(self) -> Elimination:
        """Eliminate until only what must stay is left."""
        queued = [0] * len(self.domains)
        heap = []
        for v in range(len(self.domains)):
            if v not in self.keep:
                queued[v] = self.bucket(v)
                heap.append((queued[v], v))
        heapq.heapify(heap)
        gone = bytearray(len(self.domains))
        while heap:
            size, v = heapq.heappop(heap)
            if gone[v] or (self.most is not None and len(self.near[v]) > self.most):
                continue
            now = self.bucket(v)
            if now > size:
                queued[v] = now
                heapq.heappush(heap, (now, v))
                continue
            if now > self.limit:
                break
            gone[v] = 1
            for u in self.remove(v):
                if u not in self.keep:
                    smaller = self.bucket(u)
                    if smaller < queued[u]:
                        queued[u] = smaller
                        heapq.heappush(heap, (smaller, u))
        return Elimination(self.trace, self.factors, self.constant, self.feasible)

    def remove(self, v: int) -> list[int]:
        """Eliminate one variable; return its neighbours."""
        group, union = sorted(self.scopes[v]), sorted(self.near[v])
        index = {u: i for i, u in enumerate(union)}
        index[v] = -1
        key = tuple((self.factors.pop(scope), *[index[u] for u in scope]) for scope in group)
        (number, low), best, strides = self.tables.join(
            key, [self.domains[u] for u in union], self.domains[v]
        )
        self.constant += low
        self.trace.append(Eliminated(v, union, best, strides))
        for scope in group:
            for u in scope:
                if u != v:
                    self.scopes[u].discard(scope)
        if union:
            scope = tuple(union)
            if scope in self.factors:
                number, low = self.tables.add(self.factors[scope], number)
                self.constant += low
            else:
                for u in union:
                    self.scopes[u].add(scope)
                    self.near[u].update(union)
                    self.near[u].discard(u)
            self.factors[scope] = number
        elif self.tables.arrays[number] >= INFINITE:
            self.feasible = False
        for u in union:
            self.near[u].discard(v)
        return union
