# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Intern integer cost tables and minimize them exactly by variable elimination.

A table loses its minimum (carried as a constant) and is interned, so that equal parts of a
problem give the same table numbers; sums and bucket joins are memoised on those numbers. A
repeated layer then costs look-ups.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_distir.support import load_library, memoized

from .dual_bounds import Dual
from .problem import INFINITE, Array, Factors, Problem, ints

NO_BOUND = -1


@dataclass(frozen=True)
class Elimination:
    """Outcome of an elimination.

    Attributes
    ----------
    number : int
        The number of the elimination, for :meth:`Tables.decode`.
    constant : int
        The part of the minimum that was eliminated.
    feasible : bool
        False when some variable has no value its neighbors allow.
    kept : list of int
        Variables that stay.
    factors : dict of scope to table number
        The remaining factors, over ``kept``.
    """

    number: int
    constant: int
    feasible: bool
    kept: list[int]
    factors: Factors


@dataclass(frozen=True)
class Restriction:
    """A problem with fewer states, its constant part, and whether it is feasible."""

    problem: Problem
    constant: int
    feasible: bool


class Tables:
    """Interned tables and the eliminations done with them, for a single user at a time."""

    def __init__(self) -> None:
        (
            self._intern, self._intern_rows, self._add, self._shape, self._entries,
            self._eliminate, self._decode, self._evaluate, self._eliminate_all, self._restrict,
            self._optimise, self._dual, self._forget, self._counts,
        ) = load_library()["tables"]()  # fmt: skip

    def intern(self, array: Array) -> tuple[int, int]:
        """Return the number of a table with its minimum taken out, and that minimum.

        A table without a finite entry keeps its entries.
        """
        shape = np.array(array.shape, dtype=np.int64)
        number, low = self._intern(shape, np.ascontiguousarray(array, np.int64).reshape(-1))
        return number, low

    def table(self, rows: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Intern rows; a dim of size 1 is dropped (its node has no variable).

        Entries above :data:`INFINITE` count as that.
        """
        entries = ints([entry for row in rows for entry in row])
        number, low = self._intern_rows(len(rows), len(rows[0]), entries)
        return number, low

    @memoized
    def array(self, number: int) -> Array:
        """Return the entries of a table. Do not write into it."""
        array = np.empty(tuple(self._shape(number)), dtype=np.int64)
        self._entries(number, array.reshape(-1))
        return array

    @memoized
    def dearest(self, number: int) -> int:
        """Return the largest finite entry of a table; 0 where there is none."""
        array = self.array(number)
        return int(array.max(where=array < INFINITE, initial=0))

    @memoized
    def add(self, first: int, second: int) -> tuple[int, int]:
        """Return the interned sum of two tables over the same scope."""
        number, low = self._add(first, second)
        return number, low

    def evaluate(self, problem: Problem, values: Sequence[int]) -> tuple[int, bool]:
        """Return the sum of the tables at an assignment, and whether it hits an infinite entry."""
        total, forbidden = self._evaluate(*problem.arrays, ints(values))
        return total, bool(forbidden)

    def eliminate(
        self,
        problem: Problem,
        keep: Collection[int] = (),
        limit: int = INFINITE,
        near: int | None = None,
    ) -> Elimination:
        """Minimize variables out, smallest bucket first (ties: lowest number).

        What was done to an equal problem and is not forgotten is not done again.

        Parameters
        ----------
        problem : Problem
        keep : collection of int
            Variables that stay.
        limit : int
            A variable whose bucket has more entries stays as well.
        near : int, optional
            A variable with more neighbors stays as well.
        """
        most = NO_BOUND if near is None else near
        return _elimination(self._eliminate(*problem.arrays, ints(sorted(keep)), limit, most))

    def eliminate_all(self, problem: Problem, limit: int) -> Elimination | None:
        """Minimize all variables out, as :meth:`eliminate`; None where a bucket has more entries.

        Nothing is joined then.
        """
        result = self._eliminate_all(*problem.arrays, limit)
        return _elimination(result) if result else None

    def restrict(self, problem: Problem, states: Sequence[Sequence[int]]) -> Restriction:
        """Return the problem with some states only.

        Parameters
        ----------
        problem : Problem
        states : sequence of sequence of int
            The remaining states of each variable, ascending. Variables keep their numbers; no
            factor has a variable with a single state.
        """
        constant, feasible, *rest = self._restrict(*problem.arrays, _listed(states))
        return Restriction(
            Problem([len(left) for left in states], _factors(rest)), constant, bool(feasible)
        )

    def optimum(
        self, problem: Problem, states: Sequence[Sequence[int]], limit: int
    ) -> tuple[list[int], bool] | None:
        """Return the cheapest values among some states, and whether there are any.

        Parameters
        ----------
        problem, states
            The arguments of :meth:`restrict`.
        limit : int
            None is returned where a bucket of more entries would be joined.
        """
        result = list(self._optimise(*problem.arrays, _listed(states), limit))
        return (result[1:], bool(result[0])) if result else None

    def dual(self, problem: Problem, most: int) -> Dual:
        """Return the bounds of a problem whose factors stand over at most two variables.

        Labellings that cost more than ``most`` may be lost.
        """
        return Dual(self._dual(*problem.arrays, most), problem)

    def decode(self, done: Elimination, values: list[int]) -> list[int]:
        """Return the values with those of the eliminated variables filled in."""
        filled = ints(values)
        self._decode(done.number, filled)
        return filled.tolist()  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Free the eliminations so far, which can no longer be decoded."""
        self._forget()

    @property
    def count(self) -> int:
        """Return the number of distinct tables."""
        return int(self._counts()[0])

    @property
    def joins(self) -> int:
        """Return the number of distinct buckets joined so far."""
        return int(self._counts()[1])

    @property
    def entries(self) -> int:
        """Return the numbers that all tables and joins hold."""
        return int(self._counts()[2])

    @property
    def held(self) -> int:
        """Return the numbers that the eliminations hold that are not forgotten."""
        return int(self._counts()[3])


def _elimination(order: Sequence[int]) -> Elimination:
    """Convert the native result of an elimination."""
    number, constant, feasible, count, *rest = order
    return Elimination(number, constant, bool(feasible), rest[:count], _factors(rest[count:]))


def _factors(flat: Sequence[int]) -> Factors:
    """Return the factors as the library lists them: table, number of variables, variables."""
    factors: Factors = {}
    at = 0
    while at < len(flat):
        table, rank = flat[at : at + 2]
        factors[tuple(flat[at + 2 : at + 2 + rank])] = table
        at += 2 + rank
    return factors


def _listed(states: Sequence[Sequence[int]]) -> Array:
    """Return per variable the number of states, followed by the states."""
    return ints([x for left in states for x in (len(left), *left)])
