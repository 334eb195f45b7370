# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Integer cost tables, each kept once, and exact minimisation by variable elimination.

A table loses its minimum (carried as a constant) and is interned, so that equal parts of a
problem give the same table numbers; sums and bucket joins are memoised on those numbers. A
repeated layer then costs look-ups.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .loader import load_library

INFINITE = 1 << 60
"""Cost of what may not be. Sums of tables saturate at it; two of it still fit in an int64."""

Scope = tuple[int, ...]
Factors = dict[Scope, int]
Array = npt.NDArray[np.int64]

NO_BOUND = -1


@dataclass(frozen=True)
class Problem:
    """A sum of tables to minimise.

    Attributes
    ----------
    domains : sequence of int
        Number of alternatives per variable.
    factors : mapping of scope to table number
        Scopes are sorted tuples of variables.
    """

    domains: Sequence[int]
    factors: Mapping[Scope, int]

    @functools.cached_property
    def arrays(self) -> tuple[Array, Array]:
        """The domains; per factor its table, the number of its variables, the variables."""
        flat: list[int] = []
        for scope, table in self.factors.items():
            flat += (table, len(scope), *scope)
        return _ints(self.domains), _ints(flat)


@dataclass(frozen=True)
class Elimination:
    """Outcome of an elimination.

    Attributes
    ----------
    number : int
        Of the elimination, for :meth:`Tables.decode`.
    constant : int
        What was minimised out.
    feasible : bool
        False when some variable has no value its neighbours allow.
    kept : list of int
        Variables that stay.
    factors : dict of scope to table number
        What is left, over ``kept``.
    """

    number: int
    constant: int
    feasible: bool
    kept: list[int]
    factors: Factors


@dataclass(frozen=True)
class Restriction:
    """A problem with fewer states: what became constant, and False where these exclude all."""

    problem: Problem
    constant: int
    feasible: bool


class Dual:
    """Rising lower bounds of a problem, and labellings, by tree-reweighted message passing.

    V. Kolmogorov, Convergent Tree-Reweighted Message Passing for Energy Minimization, IEEE TPAMI
    28(10), 2006; in integers, so that every bound holds exactly (``passes/solver/dual.h``).
    """

    def __init__(self, functions: Sequence[Any], domains: Sequence[int]) -> None:
        self._round, self._prune, self._excess, self._labels, self._offer = functions
        self._sizes = list(domains)

    def round(self) -> tuple[int, int]:
        """Pass once to and fro: the lower bound, the cost of the best labelling known.

        The second is :data:`INFINITE` until there is a labelling. Once the bound exceeds what
        labellings may cost, there is none.
        """
        bound, best = self._round()
        return bound, best

    def prune(self) -> list[list[int]]:
        """Drop the states that no best labelling has; per variable those left, ascending."""
        flat = list(self._prune())
        states, at = [], 0
        for _ in self._sizes:
            states.append(flat[at + 1 : at + 1 + flat[at]])
            at += 1 + flat[at]
        self._sizes = [len(left) for left in states]
        return states

    def excess(self) -> list[list[int]]:
        """Per variable, how much dearer than the least each state left looked last."""
        flat = list(self._excess())
        ends = list(itertools.accumulate(self._sizes))
        return [flat[end - size : end] for end, size in zip(ends, self._sizes, strict=True)]

    def labels(self) -> list[int]:
        """The best labelling known, in the states of the problem."""
        return list(self._labels())

    def offer(self, cost: int, labels: Sequence[int]) -> None:
        """Take a labelling found elsewhere, where it costs less than the best one."""
        self._offer(cost, _ints(labels))


class Tables:
    """Interned tables and the eliminations done with them, for one user at a time."""

    def __init__(self) -> None:
        (
            self._intern,
            self._intern_rows,
            self._add,
            self._shape,
            self._entries,
            self._eliminate,
            self._decode,
            self._evaluate,
            self._width,
            self._restrict,
            self._dual,
            self._forget,
            self._counts,
        ) = load_library()["tables"]()
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}
        self._arrays: dict[int, Array] = {}

    def intern(self, array: Array) -> tuple[int, int]:
        """Number of a table with its minimum taken out, and that minimum.

        A table without a finite entry keeps its entries.
        """
        shape = np.array(array.shape, dtype=np.int64)
        number, low = self._intern(shape, np.ascontiguousarray(array, np.int64).reshape(-1))
        return number, low

    def table(self, rows: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Intern rows; a dim of size 1 is dropped (its node has no variable).

        Entries above :data:`INFINITE` count as that.
        """
        entries = _ints([entry for row in rows for entry in row])
        number, low = self._intern_rows(len(rows), len(rows[0]), entries)
        return number, low

    def array(self, number: int) -> Array:
        """Entries of a table. Do not write into it."""
        found = self._arrays.get(number)
        if found is None:
            entries = np.array(tuple(self._entries(number)), dtype=np.int64)
            found = self._arrays[number] = entries.reshape(tuple(self._shape(number)))
        return found

    def add(self, first: int, second: int) -> tuple[int, int]:
        """Interned sum of two tables over the same scope."""
        key = (first, second)
        hit = self._sums.get(key)
        if hit is None:
            number, low = self._add(first, second)
            hit = self._sums[key] = number, low
        return hit

    def evaluate(self, problem: Problem, values: Sequence[int]) -> tuple[int, bool]:
        """Sum of the tables at an assignment, and whether it hits an infinite entry."""
        total, forbidden = self._evaluate(*problem.arrays, _ints(values))
        return total, bool(forbidden)

    def eliminate(
        self,
        problem: Problem,
        keep: Collection[int] = (),
        limit: int = INFINITE,
        near: int | None = None,
    ) -> Elimination:
        """Minimise variables out, smallest bucket first (ties: lowest number).

        Parameters
        ----------
        problem : Problem
        keep : collection of int
            Variables that stay.
        limit : int
            A variable whose bucket has more entries stays as well.
        near : int, optional
            A variable with more neighbours stays as well.
        """
        most = NO_BOUND if near is None else near
        number, constant, feasible, count, *rest = self._eliminate(
            *problem.arrays, _ints(sorted(keep)), limit, most
        )
        left = _factors(rest[count:])
        return Elimination(number, constant, bool(feasible), rest[:count], left)

    def width(self, problem: Problem) -> int:
        """Entries of the largest bucket that eliminating all variables would join."""
        return int(self._width(*problem.arrays))

    def restrict(self, problem: Problem, states: Sequence[Sequence[int]]) -> Restriction:
        """The problem with some states only.

        Parameters
        ----------
        problem : Problem
        states : sequence of sequence of int
            Per variable what is left of it, ascending. Variables keep their numbers; no factor
            stands over one that has a single state.
        """
        flat = [x for left in states for x in (len(left), *left)]
        constant, feasible, *rest = self._restrict(*problem.arrays, _ints(flat))
        return Restriction(
            Problem([len(left) for left in states], _factors(rest)), constant, bool(feasible)
        )

    def dual(self, problem: Problem, most: int) -> Dual:
        """Bounds of a problem whose factors stand over one or two variables.

        Labellings that cost more than ``most`` may be lost.
        """
        return Dual(self._dual(*problem.arrays, most), problem.domains)

    def decode(self, done: Elimination, values: list[int]) -> list[int]:
        """Values with those of the eliminated variables filled in."""
        filled = _ints(values)
        self._decode(done.number, filled)
        return filled.tolist()  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Let go of the eliminations done so far: they cannot be decoded any more."""
        self._forget()

    @property
    def count(self) -> int:
        """Number of distinct tables."""
        return int(self._counts()[0])

    @property
    def joins(self) -> int:
        """Number of distinct buckets joined so far."""
        return int(self._counts()[1])

    @property
    def entries(self) -> int:
        """Numbers that all tables and joins hold."""
        return int(self._counts()[2])


def _factors(flat: Sequence[int]) -> Factors:
    """Factors as the library lists them: table, number of variables, variables."""
    found: Factors = {}
    at = 0
    while at < len(flat):
        table, rank = flat[at : at + 2]
        found[tuple(flat[at + 2 : at + 2 + rank])] = table
        at += 2 + rank
    return found


def _ints(values: Sequence[int]) -> Array:
    return np.array(values, dtype=np.int64)
