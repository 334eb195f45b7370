# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Order the eliminations of a problem, and store what each of them joins."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tvm_distir.core.solver.problem import Array

LARGEST = (1 << 63) - 1


NO_BOUND = -1


Placed = tuple[int, tuple[int, ...]]
"""The number of a table, and the sorted variables that it stands over."""


Planned = tuple[int, tuple[int, ...]]
"""A variable that is eliminated, and the variables that it then shares a table with."""


@dataclass(frozen=True)
class Join:
    """The tables of a bucket, summed and minimized over its variable.

    Attributes
    ----------
    rest, low : int
        The number of the table over the neighbors, and the minimum that was taken out of it.
    best : int64 array (the domains of the neighbors)
        The value of the variable.
    """

    rest: int
    low: int
    best: Array


@dataclass
class Eliminating:
    """An elimination in progress: its steps, the tables that are left, and the constant."""

    steps: list[tuple[Planned, Join]] = field(default_factory=list)
    left: list[Placed] = field(default_factory=list)
    constant: int = 0
    feasible: bool = True

    def decode(self, values: Array) -> None:
        """Fill in the eliminated variables, the last first."""
        for (variable, neighbors), join in reversed(self.steps):
            values[variable] = join.best[tuple(values[list(neighbors)])]


def row_of(placed: Sequence[Placed]) -> list[int]:
    """Return the numbers of tables with their variables, in a row."""
    return [x for table, scope in placed for x in (table, len(scope), *scope)]


def read_states(flat: Array) -> list[list[int]]:
    """Read states: per variable their number, followed by the states."""
    values, states, at = flat.tolist(), [], 0
    while at < len(values):
        states.append(values[at + 1 : at + 1 + values[at]])
        at += 1 + values[at]
    return states


def elimination_order(
    domains: list[int], placed: Sequence[Placed], keep: Collection[int], limit: int, most: int
) -> list[Planned]:
    """Return the variables to eliminate, smallest bucket first; ties: the lowest variable."""
    near: list[set[int]] = [set() for _ in domains]
    for _, scope in placed:
        for v in scope:
            near[v].update(scope)
    for v, mine in enumerate(near):
        mine.discard(v)

    def bucket_size(v: int) -> int:
        return min(domains[v] * math.prod(domains[u] for u in near[v]), LARGEST)

    queued = {v: bucket_size(v) for v in range(len(domains)) if v not in keep}
    heap = [(size, v) for v, size in queued.items()]
    heapq.heapify(heap)
    order: dict[int, tuple[int, ...]] = {}
    while heap:
        size, v = heapq.heappop(heap)
        if v in order or 0 <= most < len(near[v]):
            continue
        now = bucket_size(v)
        if now > size:
            queued[v] = now
            heapq.heappush(heap, (now, v))
            continue
        if now > limit:
            break
        for u in near[v]:
            near[u] |= near[v]
            near[u] -= {u, v}
        for u in sorted(near[v]):
            if u in queued and bucket_size(u) < queued[u]:
                queued[u] = bucket_size(u)
                heapq.heappush(heap, (queued[u], u))
        order[v] = tuple(sorted(near[v]))
    return list(order.items())
