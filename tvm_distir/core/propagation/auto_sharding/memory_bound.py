# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory of devices by Lagrange multipliers at the moments of the peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.core.analysis.liveness import live_bytes
from tvm_distir.core.propagation.solve.exact import Solution
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Factors, Problem
from tvm_distir.support import InfeasibleError

from .sharding_problem import LiveRange, ShardingProblem

ROUNDS = 24
"""Number of memory costs to try."""
CLOSE = 1.03
"""Ratio of costs up to which they are not distinguished."""
DEAREST = 256
"""Highest price of memory: the fastest assignment's memory costs this multiple of its time."""

UNLIMITED = 1 << 62

Solve = Callable[[Problem, int], Solution]


class TooLargeError(InfeasibleError):
    """Error that nothing fits; ``least_bytes`` is a lower bound, 0 where none is proved."""

    least_bytes: int = 0


@dataclass(frozen=True)
class BoundedSolution:
    """A sharding assignment within a memory limit.

    Attributes
    ----------
    values : sequence of int
    price, bound : int
        The cost, and a lower bound on it, without the cost of memory; no assignment within the
        limit is cheaper than the bound.
    peak_bytes : int
    """

    values: Sequence[int]
    price: int
    bound: int
    peak_bytes: int


class MemoryBound:
    """Live bytes of an assignment over time, callees included.

    Parameters
    ----------
    net : ShardingProblem
    """

    def __init__(self, net: ShardingProblem) -> None:
        self.net = net
        self.holdings = list(_all(net, 0, 0))
        self.spans = np.array([holding[2:] for holding in self.holdings], np.int64).reshape(-1, 2)
        self.end = net.begins[-1]

    def profile(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the bytes that a device stores while each node runs, at the largest shard."""
        sizes = [int(size[tuple([values[u] for u in scope])]) for scope, size, *_ in self.holdings]
        return live_bytes(self.spans[:, 0], self.spans[:, 1], sizes, self.end)

    def priced(
        self, tables: Tables, weights: Mapping[int, float], work: bool = True
    ) -> tuple[Factors, int]:
        """Return tables and constant of the problem with memory costs added.

        Parameters
        ----------
        tables : Tables
        weights : mapping of int to float
            Price per byte at moments.
        work : bool
            Whether time counts too.
        """
        net = self.net
        factors: Factors = dict(net.factors)
        if not work:
            factors = {scope: _allowed(tables, table) for scope, table in net.factors.items()}
        constant = net.constant if work else 0
        moments = np.array(sorted(weights))
        sums = np.concatenate(([0.0], np.cumsum([weights[t] for t in moments.tolist()])))
        known: dict[tuple[int, float], tuple[int, int]] = {}
        begins = np.searchsorted(moments, self.spans[:, 0])
        ends = np.searchsorted(moments, self.spans[:, 1] + 1)
        shares = sums[ends] - sums[begins]
        for i in np.flatnonzero(shares).tolist():
            (scope, size, _, _), weight = self.holdings[i], float(shares[i])
            key = (id(size), weight)
            if key not in known:
                known[key] = tables.intern(np.rint(weight * size).astype(np.int64))
            number, least = known[key]
            constant += least
            if not scope:
                continue
            if len(scope) == 2 and scope[0] > scope[1]:
                scope = (scope[1], scope[0])
                number, _ = tables.intern(tables.array(number).T.copy())
            old = factors.get(scope)
            if old is not None:
                number, least = tables.add(old, number)
                constant += least
            factors[scope] = number
        return factors, constant


def _all(net: ShardingProblem, variables: int, moments: int) -> Iterator[LiveRange]:
    """Yield live ranges of a problem and its callees, in the caller's variables and moments."""
    for scope, size, first, last in net.holdings:
        yield LiveRange(
            tuple([variables + u for u in scope]), size, moments + first, moments + last
        )
    for k, (inner, start) in net.callees.items():
        yield from _all(inner, variables + start, moments + net.begins[k])


def _allowed(tables: Tables, number: int) -> int:
    """Return a table of zero costs that forbids assignments that do not fit."""
    return tables.intern(np.where(tables.array(number) < INFINITE, 0, INFINITE))[0]


def within(
    tables: Tables,
    net: ShardingProblem,
    solve: Solve,
    limit: int | None,
    place: str,
    gap: float = 0.0,
) -> BoundedSolution:
    """Return the cheapest assignment that stores at most ``limit`` bytes, and a bound.

    Memory at the moments where most is kept gets a cost, which is raised until the limit holds
    and lowered as far as it does (Lagrange's relaxation: H. Everett, Operations Research 11(3),
    1963).

    Parameters
    ----------
    tables : Tables
    net : ShardingProblem
    solve : callable
        Minimises a problem, given the constant that is added.
    limit : int or None
        None: any.
    place : str
        The place that messages name.
    gap : float
        Costs are no longer changed once the best is proved to be at most this share above the
        least.

    Raises
    ------
    InfeasibleError
        DIST0801 where nothing fits; it says the least that is needed where that is proved.
    """
    return _Search(tables, net, solve, UNLIMITED if limit is None else limit, place, gap).run()


class _Evaluated(NamedTuple):
    """An assignment with its cost without memory, its live bytes over time, and the peak."""

    values: Sequence[int]
    price: int
    profile: npt.NDArray[np.int64]
    moment: int

    @property
    def peak(self) -> int:
        return int(self.profile[self.moment])


def _between(
    low: tuple[float, _Evaluated], high: tuple[float, _Evaluated], moments: Sequence[int]
) -> float:
    """Return the memory price at which two assignments cost the same: the bound peaks there.

    Unless a third is cheaper there, which then replaces either of them.
    """
    less = sum(int(low[1].profile[t] - high[1].profile[t]) for t in moments)
    return (high[1].price - low[1].price) / less if less > 0 else 0.0


class _Search:
    """Search over costs of memory."""

    def __init__(
        self, tables: Tables, net: ShardingProblem, solve: Solve, limit: int, place: str, gap: float
    ) -> None:
        self.tables, self.net, self.solve = tables, net, solve
        self.limit, self.place, self.gap = limit, place, gap
        self.keeper = MemoryBound(net)
        self.best: BoundedSolution | None = None
        self.bound = 0

    def run(self) -> BoundedSolution:
        first = self._judged(self._at({}))
        if first.peak <= self.limit:
            return BoundedSolution(
                first.values, first.price, min(first.price, self.bound), first.peak
            )
        moments, low, high = [first.moment], (0.0, first), None
        weight = 0.05 * first.price / first.peak
        for _ in range(ROUNDS):
            candidate = self._judged(self._at(dict.fromkeys(moments, weight)))
            if self.best and self.best.price - self.bound <= self.gap * self.best.price:
                break
            if candidate.peak <= self.limit:
                high = weight, candidate
            elif candidate.moment not in moments:
                moments.append(candidate.moment)
                continue
            elif weight * first.peak > DEAREST * first.price:
                self._refuse(candidate.moment)
            else:
                low = weight, candidate
            weight = _between(low, high, moments) if high else 4 * weight
            if high and not CLOSE * low[0] < weight < high[0] / CLOSE:
                break  # no price between tells more than these two
        if self.best is None:
            self._refuse(candidate.moment)
        assert self.best is not None
        best = self.best
        return BoundedSolution(
            best.values, best.price, min(self.bound, best.price), best.peak_bytes
        )

    def _at(self, weights: Mapping[int, float]) -> Sequence[int]:
        """Return the best assignment at costs of memory, and raise the bound by it."""
        factors, constant = self.keeper.priced(self.tables, weights)
        problem = Problem(self.net.domains, factors)
        solution = self.solve(problem, constant)
        total, _ = self.tables.evaluate(problem, solution.values)
        used = sum(weights.values()) * self.limit
        self.bound = max(self.bound, int(constant + total - solution.gap - used))
        return solution.values

    def _judged(self, values: Sequence[int]) -> _Evaluated:
        """Return cost and live bytes of an assignment; the best that fits is recorded."""
        total, _ = self.tables.evaluate(Problem(self.net.domains, self.net.factors), values)
        price, profile = self.net.constant + total, self.keeper.profile(values)
        moment = int(profile.argmax())
        candidate = _Evaluated(values, price, profile, moment)
        if candidate.peak <= self.limit and (self.best is None or price < self.best.price):
            self.best = BoundedSolution(values, price, 0, candidate.peak)
        return candidate

    def _refuse(self, moment: int) -> None:
        """Raise an error with the least memory that a moment needs.

        Raises
        ------
        InfeasibleError
            DIST0801.
        """
        factors, constant = self.keeper.priced(self.tables, {moment: 1.0}, work=False)
        problem = Problem(self.net.domains, factors)
        solution = self.solve(problem, constant)
        total, _ = self.tables.evaluate(problem, solution.values)
        least = constant + total - solution.gap
        known = f"at least {_gib(least)} are needed at the same time"
        if least <= self.limit:
            known, least = "no placement that was found fits", 0
        error = TooLargeError(
            "DIST0801",
            f"{known}, and {_gib(self.limit)} are allowed",
            place=self.place,
            remedy="Use more devices, a smaller batch, or recomputation.",
        )
        error.least_bytes = least
        raise error


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3f} GiB"
