# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Labelling problems too wide for elimination alone.

First alternatives that another one beats whatever their neighbours do are dropped (dead-end
elimination); what is still too wide loses its variables with at most two neighbours, and the
core goes to the mixed-integer solver HiGHS through SciPy, an optional dependency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EnvironmentError_, PropagationError
from ..native import INFINITE, Problem, Tables
from ..native.tables import Array, Factors, Scope

PAIR = 2
TIME_LIMIT_S = 120


@dataclass
class Solution:
    """Values of all variables, and a lower bound of the cost's distance to the optimum."""

    values: list[int]
    gap: int
    feasible: bool


def solve_wide(tables: Tables, problem: Problem, limit: int, place: str) -> Solution:
    """Minimise a problem whose elimination exceeds ``limit`` entries.

    Raises
    ------
    EnvironmentError_
        DIST0111 when SciPy is needed and missing.
    PropagationError
        DIST0410 when the solver finds nothing in its time.
    """
    sizes, left = list(problem.domains), dict(problem.factors)
    alive = _Pruner(tables, sizes, left).run()
    pruned = Problem(sizes, left)
    done = tables.eliminate(pruned, limit=limit)
    values, gap = [0] * len(sizes), 0
    if done.factors:
        done = tables.eliminate(pruned, limit=limit, near=PAIR)
        gap = _core(tables, sizes, done.factors, values, place)
    values = tables.decode(done, values)
    for v, states in alive.items():
        values[v] = states[values[v]]
    return Solution(values, gap, done.feasible)


class _Pruner:
    """Drops dominated alternatives until none is left; restricts sizes and factors in place."""

    def __init__(self, tables: Tables, sizes: list[int], factors: Factors) -> None:
        self.tables, self.sizes, self.factors = tables, sizes, factors
        self.scopes: list[list[Scope]] = [[] for _ in sizes]
        for scope in factors:
            for v in scope:
                self.scopes[v].append(scope)
        self.alive: dict[int, tuple[int, ...]] = {}

    def run(self) -> dict[int, tuple[int, ...]]:
        """Surviving alternatives of the variables that lost some."""
        waiting = list(range(len(self.sizes)))
        queued = bytearray([1]) * len(self.sizes)
        while waiting:  # last first: producers are usually decided by their consumers
            v = waiting.pop()
            queued[v] = 0
            stay = self._survivors(v)
            if len(stay) < self.sizes[v]:
                for u in self._restrict(v, stay):
                    if not queued[u]:
                        queued[u] = 1
                        waiting.append(u)
        return self.alive

    def _survivors(self, v: int) -> tuple[int, ...]:
        size = self.sizes[v]
        worst: Array = np.zeros((size, size), dtype=np.int64)
        for scope in self.scopes[v]:
            array = self.tables.array(self.factors[scope])
            rows = np.moveaxis(array, scope.index(v), 0).reshape(size, -1)
            more = np.where(rows[None] >= INFINITE, -INFINITE, rows[:, None] - rows[None])
            worst = np.clip(worst + more.max(axis=2), -INFINITE, INFINITE)
        first = np.arange(size)[:, None] < np.arange(size)
        beats = (worst < 0) | ((worst == 0) & ((worst.T > 0) | first))
        return tuple(s for s in range(size) if not any(beats[t, s] for t in range(size) if t != s))

    def _restrict(self, v: int, stay: tuple[int, ...]) -> set[int]:
        before = self.alive.get(v, tuple(range(self.sizes[v])))
        self.alive[v] = tuple(before[i] for i in stay)
        self.sizes[v] = len(stay)
        touched: set[int] = set()
        scopes, self.scopes[v] = self.scopes[v], []
        for scope in scopes:
            array = np.take(self.tables.array(self.factors.pop(scope)), stay, scope.index(v))
            new = scope
            if len(stay) == 1:
                array = array.squeeze(scope.index(v))
                new = tuple(u for u in scope if u != v)
            number, _ = self.tables.intern(array)
            for u in scope:
                if u != v:
                    touched.add(u)
                    self.scopes[u].remove(scope)
                    if new not in self.scopes[u]:
                        self.scopes[u].append(new)
            if len(stay) > 1:
                self.scopes[v].append(new)
            if new:
                if new in self.factors:
                    number, _ = self.tables.add(self.factors[new], number)
                self.factors[new] = number
        return touched


def _scipy() -> Any:
    try:
        import scipy.optimize
        import scipy.sparse
    except ImportError as error:
        raise EnvironmentError_(
            "DIST0111",
            "this labelling problem is too wide for elimination alone and needs SciPy's solver",
            place="propagation",
            remedy="pip install 'tvm_distir(solver)' with square brackets, or pip install scipy.",
        ) from error
    return scipy


def _core(
    tables: Tables, sizes: Sequence[int], factors: Factors, values: list[int], place: str
) -> int:
    """Solve what is left as an integer program; its relaxation is usually tight already."""
    scipy = _scipy()
    variables = sorted({v for scope in factors for v in scope})
    first: dict[int, int] = {}
    cost: list[float] = []
    upper: list[int] = []
    rows: list[int] = []
    columns: list[int] = []
    ones: list[int] = []
    right: list[int] = []

    def entry(row: int, column: int, value: int) -> None:
        rows.append(row)
        columns.append(column)
        ones.append(value)

    for v in variables:
        first[v] = len(cost)
        for s in range(sizes[v]):
            entry(len(right), len(cost) + s, 1)
        cost += [0.0] * sizes[v]
        upper += [1] * sizes[v]
        right.append(1)
    integral = len(cost)
    for scope, number in sorted(factors.items()):
        array = tables.array(number)
        base = len(cost)
        cells = np.arange(array.size).reshape(array.shape)
        for axis, v in enumerate(scope):  # the cells of each value add up to its variable
            for s in range(sizes[v]):
                for cell in np.take(cells, s, axis=axis).ravel():
                    entry(len(right), base + int(cell), 1)
                entry(len(right), first[v] + s, -1)
                right.append(0)
        flat = array.ravel()
        cost += [float(x) if x < INFINITE else 0.0 for x in flat]
        upper += [int(x < INFINITE) for x in flat]
    scale = max(cost) / 1e7 or 1.0
    matrix = scipy.sparse.coo_matrix((ones, (rows, columns)), (len(right), len(cost))).tocsr()
    found = scipy.optimize.milp(
        np.array(cost) / scale,
        integrality=(np.arange(len(cost)) < integral).astype(int),
        bounds=scipy.optimize.Bounds(0, np.array(upper)),
        constraints=scipy.optimize.LinearConstraint(matrix, right, right),
        options={"mip_rel_gap": 0, "time_limit": TIME_LIMIT_S},
    )
    if found.x is None:
        raise PropagationError(
            "DIST0410",
            f"{len(variables)} choices depend on each other at once, and the solver found no "
            f"assignment: {found.message}",
            place=place,
            remedy="Annotate some values in the middle of the model.",
        )
    for v in variables:
        values[v] = int(np.argmax(found.x[first[v] : first[v] + sizes[v]]))
    return max(0, int((found.fun - found.mip_dual_bound) * scale))
