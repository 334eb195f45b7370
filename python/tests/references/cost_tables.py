# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Intern cost tables and eliminate variables in NumPy, as ``passes/solver`` does.

Every result equals that of the native code, including numbers of tables and the choice among equal
minima.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.references.dual_bounds import dual_functions
from tests.references.elimination import (
    LARGEST,
    NO_BOUND,
    Eliminating,
    Join,
    Placed,
    Planned,
    elimination_order,
    read_states,
    row_of,
)
from tvm_distir.core.solver.problem import INFINITE, Array, Scope


class _Session:
    """Interned tables and the eliminations done with them (``passes/solver/session.h``)."""

    def __init__(self) -> None:
        self.tables: list[Array] = []
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}
        self._joins: dict[tuple[Any, ...], Join] = {}
        self._entries = 0
        self._done: list[Eliminating] = []
        self._answers: dict[tuple[Any, ...], list[int]] = {}
        self._forgotten = 0
        self._held = 0

    def intern(self, shape: Sequence[int], entries: Array) -> tuple[int, int]:
        """Return the number of a table and the minimum that was taken out of it."""
        low = int(entries.min(initial=LARGEST))
        low = 0 if low >= INFINITE else low
        table = np.where(entries >= INFINITE, INFINITE, entries - low)
        key = tuple(map(int, shape)), table.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.tables)
            self._entries += table.size
            self.tables.append(table.reshape(key[0]))
        return self._numbers[key], low

    def intern_rows(self, rows: int, columns: int, entries: Array) -> tuple[int, int]:
        """Intern a table of two dims, of which those of size 1 are dropped."""
        return self.intern([size for size in (rows, columns) if size != 1], entries)

    def add(self, first: int, second: int) -> tuple[int, int]:
        """Return the interned sum of two tables over the same variables."""
        key = first, second
        if key not in self._sums:
            left, right = self.tables[first], self.tables[second]
            if left.shape != right.shape:
                raise ValueError(f"tables {first} and {second} differ in shape")
            self._sums[key] = self.intern(left.shape, np.minimum(left + right, INFINITE).ravel())
        return self._sums[key]

    def _placed(self, domains: Array, factors: Array) -> list[Placed]:
        """Read factors: table, number of variables, variables, and so on.

        Raises
        ------
        ValueError
            For a table that does not fit its variables, or a variable without states.
        """
        if domains.min(initial=1) < 1:
            raise ValueError("domains must be positive")
        values, placed, at = factors.tolist(), list[Placed](), 0
        while at < len(values):
            table, rank = values[at : at + 2]
            scope = tuple(values[at + 2 : at + 2 + rank])
            if self.tables[table].shape != tuple(domains[list(scope)].tolist()):
                raise ValueError(f"table {table} does not fit the variables {scope}")
            placed.append((table, scope))
            at += 2 + rank
        return placed

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a table."""
        return self.tables[number].shape

    def entries(self, number: int, out: Array) -> None:
        """Write the entries of a table into an array."""
        out[:] = self.tables[number].ravel()

    def eliminate(
        self, domains: Array, factors: Array, keep: Array, limit: int, most: int
    ) -> list[int]:
        """Eliminate variables; ``most``: a variable with more neighbors stays, -1 for no bound."""
        question = _question(domains, factors, keep, limit, most)
        if question not in self._answers:
            placed = self._placed(domains, factors)
            order = elimination_order(domains.tolist(), placed, set(keep.tolist()), limit, most)
            self._run(domains, placed, order, question, 4 + domains.size + factors.size + keep.size)
        return self._answers[question]

    def eliminate_all(self, domains: Array, factors: Array, limit: int) -> list[int]:
        """Eliminate all variables; empty where that would join a bucket of more entries."""
        question = _question(domains, factors, domains[:0], limit, NO_BOUND)
        known = self._answers.get(question)
        if known is None or known[3] > 0:
            placed = self._placed(domains, factors)
            order = elimination_order(domains.tolist(), placed, (), limit, NO_BOUND)
            if len(order) < domains.size:
                return []
            self._run(domains, placed, order, question, 4 + domains.size + factors.size)
        return self._answers[question]

    def _run(
        self,
        domains: Array,
        placed: list[Placed],
        order: list[Planned],
        question: tuple[Any, ...],
        size: int,
    ) -> None:
        """Eliminate variables in their order, and remember the answer to a question."""
        done = self._eliminated(domains.tolist(), placed, order)
        self._done.append(done)
        eliminated = {variable for variable, _ in order}
        left = [v for v in range(domains.size) if v not in eliminated]
        number = self._forgotten + len(self._done) - 1
        answer = [number, done.constant, int(done.feasible), len(left), *left, *row_of(done.left)]
        self._held += sum(len(near) + 1 for _, near in order) + size + len(answer)
        self._answers[question] = answer

    def _eliminated(
        self, domains: list[int], placed: Sequence[Placed], order: Sequence[Planned]
    ) -> Eliminating:
        done = Eliminating()
        factors = dict(enumerate(placed))
        of: list[list[int]] = [[] for _ in domains]
        for number, (_, scope) in factors.items():
            for v in scope:
                of[v].append(number)
        for variable, neighbors in order:
            group = sorted((f for f in of[variable] if f in factors), key=lambda f: factors[f][1])
            position = {v: at for at, v in enumerate(neighbors)} | {variable: -1}
            bucket = []
            for f in group:
                table, scope = factors.pop(f)
                bucket.append((table, tuple(position[v] for v in scope)))
            join = self._join(bucket, [domains[v] for v in neighbors], domains[variable])
            done.constant += join.low
            if neighbors:
                fresh = len(placed) + len(done.steps)
                done.constant += self._put(factors, of, neighbors, join.rest, fresh)
            elif self.tables[join.rest] >= INFINITE:
                done.feasible = False
            done.steps.append(((variable, neighbors), join))
        done.left = list(factors.values())
        return done

    def _put(
        self, factors: dict[int, Placed], of: list[list[int]], scope: Scope, number: int, fresh: int
    ) -> int:
        """Add a table to the factors; return the constant that this takes out.

        ``fresh`` is the number of a new factor, unless there is a factor over the same variables.
        """
        for v in scope:
            of[v] = [f for f in of[v] if f in factors]
        for f in of[scope[0]]:
            if factors[f][1] == scope:
                total, low = self.add(factors[f][0], number)
                factors[f] = total, scope
                return low
        factors[fresh] = number, scope
        for v in scope:
            of[v].append(fresh)
        return 0

    def _join(
        self, bucket: Sequence[tuple[int, tuple[int, ...]]], shape: list[int], size: int
    ) -> Join:
        """Sum the tables of a bucket, each with the places of its dims, and minimize."""
        key = tuple(bucket)
        if key in self._joins:
            return self._joins[key]
        total = np.zeros((*shape, size), np.int64)
        for number, positions in bucket:
            dims = [len(shape) if at < 0 else at for at in positions]
            table = self.tables[number].transpose(np.argsort(dims))
            total += table.reshape([n if d in dims else 1 for d, n in enumerate(total.shape)])
            np.minimum(total, INFINITE, out=total)
        rest, low = self.intern(shape, total.min(axis=-1).ravel())
        self._entries += math.prod(shape)
        self._joins[key] = Join(rest, low, total.argmin(axis=-1))
        return self._joins[key]

    def decode(self, number: int, values: Array) -> None:
        """Fill in the values of the variables that an elimination took out."""
        if not 0 <= number - self._forgotten < len(self._done):
            raise IndexError(f"there is no elimination {number}")
        self._done[number - self._forgotten].decode(values)

    def evaluate(self, domains: Array, factors: Array, values: Array) -> tuple[int, int]:
        """Return the sum at an assignment, and whether it hits an infinite entry."""
        total = forbidden = 0
        for number, scope in self._placed(domains, factors):
            entry = int(self.tables[number][tuple(values[list(scope)])])
            forbidden |= int(entry >= INFINITE)
            total = min(total + entry, INFINITE)
        return total, forbidden

    def restrict(self, domains: Array, factors: Array, states: Array) -> list[int]:
        """Return the constant, whether it is feasible, and the factors over some states."""
        constant, feasible, left = self._restricted(
            self._placed(domains, factors), read_states(states)
        )
        return [constant, int(feasible), *row_of(left)]

    def _restricted(
        self, placed: Sequence[Placed], states: list[list[int]]
    ) -> tuple[int, bool, list[Placed]]:
        constant, feasible = 0, True
        merged: dict[tuple[int, ...], int] = {}
        for table, scope in placed:
            part = self.tables[table][np.ix_(*(states[v] for v in scope))]
            left = tuple(v for v in scope if len(states[v]) > 1)
            if not left:
                feasible = feasible and int(part.item()) < INFINITE
                constant += int(part.item()) if part.item() < INFINITE else 0
                continue
            number, low = self.intern([len(states[v]) for v in left], part.ravel())
            constant += low
            if left in merged:
                number, low = self.add(merged[left], number)
                constant += low
            merged[left] = number
        return constant, feasible, [(merged[scope], scope) for scope in sorted(merged)]

    def optimize(self, domains: Array, factors: Array, states: Array, limit: int) -> list[int]:
        """Return whether some states are feasible, and the cheapest; empty where it is too wide."""
        placed, remaining = self._placed(domains, factors), read_states(states)
        sizes = [len(mine) for mine in remaining]
        wide = [
            (table, tuple(v for v in scope if sizes[v] > 1))
            for table, scope in placed
            if sum(sizes[v] > 1 for v in scope) > 1
        ]
        order = elimination_order(sizes, wide, (), limit, NO_BOUND)
        if len(order) < len(sizes):
            return []
        _, feasible, left = self._restricted(placed, remaining)
        done = self._eliminated(sizes, left, order)
        values = np.zeros(len(sizes), np.int64)
        done.decode(values)
        chosen = [mine[value] for mine, value in zip(remaining, values.tolist(), strict=True)]
        return [int(feasible and done.feasible), *chosen]

    def dual(self, domains: Array, factors: Array, most: int) -> tuple[Callable[..., Any], ...]:
        """Return the functions of bounds of a problem; costs above ``most`` do not count."""
        if not 0 <= most < INFINITE:
            raise ValueError(f"most is {most}")
        return dual_functions(
            domains.tolist(),
            [(self.tables[t], scope) for t, scope in self._placed(domains, factors)],
            most,
        )

    def forget(self) -> None:
        """Free the eliminations so far, which can no longer be decoded."""
        self._forgotten += len(self._done)
        self._done.clear()
        self._answers.clear()
        self._held = 0

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of tables and joins, of their entries, and what eliminations hold."""
        return len(self.tables), len(self._joins), self._entries, self._held


def _question(
    domains: Array, factors: Array, keep: Array, limit: int, most: int
) -> tuple[Any, ...]:
    return limit, most, domains.tobytes(), factors.tobytes(), keep.tobytes()


def tables() -> tuple[Callable[..., Any], ...]:
    """Return the functions of new tables: the reference of the native function of this name."""
    session = _Session()
    return (
        session.intern, session.intern_rows, session.add, session.shape, session.entries,
        session.eliminate, session.decode, session.evaluate, session.eliminate_all,
        session.restrict, session.optimize, session.dual, session.forget, session.counts,
    )  # fmt: skip
