# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimises sharding problems exactly: variable elimination, bounds and integer programs.

A problem that stays narrow is eliminated variable by variable. In other problems the variables
with at most two neighbours go first; what is left, the core, gets lower bounds by message passing
and assignments as upper bounds. States that no assignment as cheap as the best can have are
dropped, until what remains is narrow enough to be eliminated: the result then is the optimum. A
core that stays wide goes to the integer solver.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.dual_bounds import Dual
from tvm_distir.core.solver.problem import INFINITE, Array, Problem
from tvm_distir.support import PropagationError

from .ilp import integer_optimum

PAIR = 2
NARROW = 1 << 17
"""Entries of a bucket that elimination joins at once, before bounds are worth their time."""

ROUNDS = 600
PRUNE_EVERY = 5
FIRST_PROPOSAL = 10
"""Rounds: in all; between prunings; before the first proposal, which is repeated at the double."""

LIKED = (0.3, 0.1, 0.03, 0.01)
"""Shares of the more expensive states that a proposal includes, as its width allows."""

MOST_STARTS = 16
"""Limit on the latest assignments kept for problems of a structure."""

SMALLER = 0.9
"""Elimination is tried again once so few of the states are left."""


@dataclass(frozen=True)
class Solution:
    """Values of all variables, the gap of their cost to a bound, and whether any are allowed."""

    values: list[int]
    gap: int
    feasible: bool


class WarmStarts:
    """Warm starts for problems of the same scopes and domains.

    Others, with other tables: an assignment is an upper bound, messages give a lower bound.
    That hastens the search for an optimum; what the optimum is does not depend on it.
    """

    def __init__(self) -> None:
        self._labels: dict[Hashable, list[list[int]]] = {}
        self._messages: dict[Hashable, Array] = {}

    def begin(self, tables: Tables, problem: Problem, most: int) -> Dual | None:
        """Return bounds from the assignment that is cheapest now and the latest messages.

        None where no sharding assignment is known of at most ``most``.
        """
        key = _structure(problem)
        costs = [(tables.evaluate(problem, mine), mine) for mine in self._labels.get(key, ())]
        (cost, forbidden), labels = min(costs, default=((most, True), []))
        if forbidden or cost > most:
            return None
        dual = tables.dual(problem, cost)
        dual.offer(cost, labels)
        dual.resume(self._messages[key])
        return dual

    def keep(self, problem: Problem, labels: list[int], dual: Dual) -> None:
        """Keep an assignment, and the messages that led to it."""
        key = _structure(problem)
        known = self._labels.setdefault(key, [])
        if labels not in known:
            known.append(labels)
        del known[:-MOST_STARTS]
        self._messages[key] = dual.messages()


def _structure(problem: Problem) -> Hashable:
    return tuple(problem.domains), tuple(problem.factors)


def minimise(
    tables: Tables,
    problem: Problem,
    limit: int,
    location: str,
    starts: WarmStarts | None = None,
    gap: float = 0.0,
    constant: int = 0,
    narrow: int = NARROW,
    rounds: int | None = None,
    program: bool = True,
) -> Solution:
    """Minimise a problem.

    Parameters
    ----------
    tables : Tables
    problem : Problem
    limit : int
        Entries of the largest bucket to join.
    location : str
        The place that messages name.
    starts : WarmStarts, optional
        The solutions of problems with the same structure, to start from.
    gap : float
        A sharding assignment will do whose cost is proved to be at most this share above the least.
    constant : int
        The constant that is added to all costs, of which ``gap`` is a share too.
    narrow : int
        Entries of the largest bucket of a problem that is eliminated as it is.
    rounds : int, optional
        The maximum number of rounds of bounds; None: :data:`ROUNDS`.
    program : bool
        Whether what stays wide then goes to the integer solver; else the best known assignment
        is the answer, or that there is none.

    Raises
    ------
    PropagationError
        DIST0410 when there is no assignment.
    """
    values = [0] * len(problem.domains)
    full = tables.eliminate_all(problem, min(limit, narrow))
    if full is not None:
        return Solution(tables.decode(full, values), 0, full.feasible)
    done = tables.eliminate(problem, near=PAIR)
    remaining = sorted({v for scope in done.factors for v in scope})
    at = {v: i for i, v in enumerate(remaining)}
    factors = {tuple([at[v] for v in scope]): t for scope, t in done.factors.items()}
    core = paired(tables, Problem([problem.domains[v] for v in remaining], factors))
    effort = _Effort(limit, rounds or ROUNDS, program, gap, constant + done.constant)
    solution = _Core(tables, core, location, starts or WarmStarts(), effort).solve()
    for v, value in zip(remaining, solution.values):
        values[v] = value
    return Solution(tables.decode(done, values), solution.gap, solution.feasible and done.feasible)


def paired(tables: Tables, problem: Problem) -> Problem:
    """Reduce to tables over pairs: a wider table gets a variable of its cells."""
    domains, factors = list(problem.domains), dict(problem.factors)
    for scope, number in problem.factors.items():
        if len(scope) <= PAIR:
            continue
        del factors[scope]
        array = tables.array(number)
        cells = np.argwhere(array < INFINITE)
        if len(cells) == 0:
            cells = np.zeros((1, len(scope)), dtype=np.int64)
        cell = len(domains)
        domains.append(len(cells))
        costs = array[tuple(cells.T)]
        if len(cells) > 1 or costs[0] >= INFINITE:
            factors[(cell,)], _ = tables.intern(costs)
        for v, column in zip(scope, cells.T):
            same = np.arange(problem.domains[v])[:, None] == column[None]
            factors[v, cell], _ = tables.intern(np.where(same, 0, INFINITE).astype(np.int64))
    return Problem(domains, factors)


@dataclass(frozen=True)
class _Effort:
    """Options of :func:`minimise` for a core; ``constant`` is added to all its costs."""

    limit: int
    rounds: int
    program: bool
    gap: float
    constant: int


class _Core:
    """A problem of pairs that is too wide to be eliminated as it is."""

    def __init__(
        self, tables: Tables, problem: Problem, location: str, starts: WarmStarts, effort: _Effort
    ) -> None:
        self.tables, self.problem, self.location = tables, problem, location
        self.starts, self.effort, self.limit = starts, effort, effort.limit

    def solve(self) -> Solution:
        """Raise the bound and drop states until the rest can be eliminated."""
        most = sum(map(self.tables.dearest, self.problem.factors.values()))
        most = min(most, INFINITE // 2)  # what is dearer is no cost to reckon with
        started = self.starts.begin(self.tables, self.problem, most)
        dual, first = started or self.tables.dual(self.problem, most), started is None
        tried, proposal = float("inf"), FIRST_PROPOSAL
        bound = 0
        for number in range(1, self.effort.rounds + 1):
            bound, best = dual.round()
            if bound > most:
                return self._nothing()
            if bound >= best or self._near(bound, best):
                return self._kept(dual, Solution(dual.labels(), max(0, best - bound), True))
            if first and best < INFINITE:  # finer units, now that costs are known to be small
                first, labels = False, dual.labels()
                dual = self.tables.dual(self.problem, best)
                dual.offer(best, labels)
                continue
            if number % PRUNE_EVERY:
                continue
            states = dual.prune()
            count = sum(map(len, states))
            if number >= proposal:
                proposal *= 2
                self._propose(dual, states)
            if count <= SMALLER * tried:
                tried = count
                solution = self._eliminated(states, min(self.limit, NARROW))
                if solution is not None:
                    return self._kept(dual, solution)
        states = dual.prune()
        solution = self._eliminated(states, self.limit)
        if solution is None and not self.effort.program:
            labels = dual.labels()
            if not labels:
                return self._nothing()
            cost, _ = self.tables.evaluate(self.problem, labels)
            solution = Solution(labels, max(0, cost - bound), True)
        return self._kept(dual, solution or self._integer(dual, states, bound))

    def _near(self, bound: int, best: int) -> bool:
        """Return whether an assignment is near enough to the least cost."""
        effort = self.effort
        return best < INFINITE and best - bound <= effort.gap * (best + effort.constant)

    def _kept(self, dual: Dual, solution: Solution) -> Solution:
        self.starts.keep(self.problem, solution.values, dual)
        return solution

    def _nothing(self) -> Solution:
        return Solution([0] * len(self.problem.domains), 0, False)

    def _eliminated(self, states: Sequence[Sequence[int]], limit: int) -> Solution | None:
        """Return the optimum over some states; None when they are too wide."""
        optimum = self.tables.optimum(self.problem, states, limit)
        return None if optimum is None else Solution(optimum[0], 0, optimum[1])

    def _propose(self, dual: Dual, states: Sequence[Sequence[int]]) -> None:
        """Offer the optimum over the states that look cheapest, as many as stay narrow."""
        excess = dual.excess()
        higher = sorted(x for excesses in excess for x in excesses if x > 0)
        for share in LIKED if higher else ():
            most = higher[int(share * (len(higher) - 1))]
            liked = [
                [s for s, x in zip(mine, excesses) if x <= most]
                for mine, excesses in zip(states, excess, strict=True)
            ]
            solution = self._eliminated(liked, min(self.limit, NARROW))
            if solution is None:
                continue
            cost, forbidden = self.tables.evaluate(self.problem, solution.values)
            if solution.feasible and not forbidden:
                dual.offer(cost, solution.values)
            return

    def _integer(self, dual: Dual, states: Sequence[Sequence[int]], bound: int) -> Solution:
        """Return the integer solver's answer, or the best earlier assignment."""
        left = self.tables.restrict(self.problem, states)
        known = [dual.labels()] if dual.labels() else []
        starts = [
            [mine.index(x) for mine, x in zip(states, assignment, strict=True)]
            for assignment in known
        ]
        optimum = integer_optimum(self.tables, left.problem, *starts)
        if optimum is not None:
            known.append([mine[i] for mine, i in zip(states, optimum.values, strict=True)])
            bound = max(bound, left.constant + optimum.bound)
        if not known:
            raise PropagationError(
                "DIST0410",
                f"{len(self.problem.domains)} choices depend on each other, and the solver found "
                "no assignment",
                location=self.location,
                remedy="Annotate some values in the middle of the model.",
            )
        costs = [self.tables.evaluate(self.problem, labels)[0] for labels in known]
        cost, labels = min(zip(costs, known, strict=True))
        return Solution(labels, max(0, cost - bound), cost < INFINITE)
