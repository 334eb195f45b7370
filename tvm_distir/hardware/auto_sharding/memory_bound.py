# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory of devices by Lagrange multipliers at the moments of the peak."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm_distir.core.propagation import Solution
from tvm_distir.core.solver import Problem, Tables
from tvm_distir.support import InfeasibleError

from .memory_profile import Evaluated, MemoryBound
from .sharding_problem import ShardingProblem

ROUNDS = 24
"""Number of memory costs to try."""
CLOSE = 1.03
"""Ratio of costs up to which they are not distinguished."""
DEAREST = 256
"""Highest price of memory: the fastest assignment's memory costs this multiple of its time."""

UNLIMITED = 1 << 62

Solve = Callable[[Problem, int], Solution]


class TooLargeError(InfeasibleError):
    """Error that nothing fits.

    ``least_bytes`` is a lower bound, 0 where none is proved. The devices of a mesh of any shape
    store ``mesh_bytes`` together at least.
    """

    mesh_bytes: int = 0


@dataclass(frozen=True)
class BoundedSolution:
    """A sharding assignment within a memory limit.

    Attributes
    ----------
    values : sequence of int
    cost, bound : int
        The cost, and a lower bound on it, without the cost of memory; no assignment within the
        limit is cheaper than the bound.
    peak_bytes : int
    """

    values: Sequence[int]
    cost: int
    bound: int
    peak_bytes: int


def _between(
    low: tuple[float, Evaluated], high: tuple[float, Evaluated], moments: Sequence[int]
) -> float:
    """Return the memory price at which two assignments cost the same: the bound peaks there.

    Unless a third is cheaper there, which then replaces either of them.
    """
    less = sum(int(low[1].profile[t] - high[1].profile[t]) for t in moments)
    return (high[1].cost - low[1].cost) / less if less > 0 else 0.0


class MemorySearch:
    """Search for the cheapest assignment within a memory limit, and a bound.

    Memory at the moments where most is kept gets a cost, which is raised until the limit holds
    and lowered as far as it does (Lagrange's relaxation: H. Everett, Operations Research 11(3),
    1963). The assignment without a limit, where every search begins, is computed once.

    Parameters
    ----------
    tables : Tables
    net : ShardingProblem
    solve : callable
        Minimises a problem, given the constant that is added.
    location : str
        The place that messages name.
    gap : float
        Costs are no longer changed once the best is proved to be at most this share above the
        least.
    """

    def __init__(
        self, tables: Tables, net: ShardingProblem, solve: Solve, location: str, gap: float = 0.0
    ) -> None:
        self.tables, self.net, self.solve = tables, net, solve
        self.location, self.gap = location, gap
        self.keeper = MemoryBound(net)
        self.limit = UNLIMITED
        self.best: BoundedSolution | None = None
        self.bound = 0

    @functools.cached_property
    def _unlimited(self) -> tuple[Evaluated, int]:
        """Return the assignment without a limit, and a lower bound on its cost."""
        values, bound = self._at({})
        return self._evaluated(values), bound

    def _begin(self, limit: int) -> Evaluated:
        """Return the assignment without a limit, from which the search of a limit begins."""
        first, self.bound = self._unlimited
        self.limit, self.best = limit, None
        return first

    def run(self, limit: int | None) -> BoundedSolution:
        """Return the cheapest assignment that stores at most ``limit`` bytes, and a bound.

        Parameters
        ----------
        limit : int or None
            None: any number of bytes.

        Raises
        ------
        InfeasibleError
            DIST0801 where nothing fits; it says the least that is needed where that is proved.
        """
        first = self._begin(UNLIMITED if limit is None else limit)
        if first.peak <= self.limit:
            return BoundedSolution(
                first.values, first.cost, min(first.cost, self.bound), first.peak
            )
        if self.keeper.least_bytes > self.limit:
            raise self._too_large(self.keeper.least_bytes)
        moments, low, high = [first.moment], (0.0, first), None
        weight = 0.05 * first.cost / first.peak
        for _ in range(ROUNDS):
            candidate = self._judged(dict.fromkeys(moments, weight))
            if self.best and self.best.cost - self.bound <= self.gap * self.best.cost:
                break
            if candidate.peak <= self.limit:
                high = weight, candidate
            elif candidate.moment not in moments:
                moments.append(candidate.moment)
                continue
            elif weight * first.peak > DEAREST * first.cost:
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
        return BoundedSolution(best.values, best.cost, min(self.bound, best.cost), best.peak_bytes)

    def _at(self, weights: Mapping[int, float]) -> tuple[Sequence[int], int]:
        """Return the best assignment at costs of memory, and a lower bound within the limit."""
        values, least = self._solved(weights)
        return values, int(least - sum(weights.values()) * self.limit)

    def _solved(self, weights: Mapping[int, float], work: bool = True) -> tuple[Sequence[int], int]:
        """Return an assignment of least cost with memory costs, and a bound on its cost."""
        factors, constant = self.keeper.priced(self.tables, weights, work)
        problem = Problem(self.net.domains, factors)
        solution = self.solve(problem, constant)
        total, _ = self.tables.evaluate(problem, solution.values)
        return solution.values, constant + total - solution.gap

    def _evaluated(self, values: Sequence[int]) -> Evaluated:
        """Return cost and live bytes of an assignment."""
        total, _ = self.tables.evaluate(Problem(self.net.domains, self.net.factors), values)
        profile = self.keeper.profile(values)
        return Evaluated(values, self.net.constant + total, profile, int(profile.argmax()))

    def _judged(self, weights: Mapping[int, float]) -> Evaluated:
        """Return the best assignment at costs of memory; raise the bound, record the best."""
        values, bound = self._at(weights)
        self.bound = max(self.bound, bound)
        candidate = self._evaluated(values)
        if candidate.peak <= self.limit and (self.best is None or candidate.cost < self.best.cost):
            self.best = BoundedSolution(values, candidate.cost, 0, candidate.peak)
        return candidate

    def _refuse(self, moment: int) -> None:
        """Raise an error with the least memory that a moment needs.

        Raises
        ------
        InfeasibleError
            DIST0801.
        """
        raise self._too_large(self._solved({moment: 1.0}, work=False)[1])

    def _too_large(self, least_bytes: int) -> TooLargeError:
        """Return the error of a lower bound on the memory; one within the limit proves nothing."""
        known = f"at least {_gib(least_bytes)} are needed at the same time"
        if least_bytes <= self.limit:
            known, least_bytes = "no placement that was found fits", 0
        problem = f"{known}, and {_gib(self.limit)} are allowed"
        remedy = "Use more devices, a smaller batch, or recomputation."
        error = TooLargeError("DIST0801", problem, location=self.location, remedy=remedy)
        error.least_bytes, error.mesh_bytes = least_bytes, self.keeper.mesh_bytes
        return error


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3f} GiB"
