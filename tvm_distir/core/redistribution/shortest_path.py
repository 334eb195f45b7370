# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search a shortest path of redistribution steps (A*).

The least bytes that a device must receive bound the rest of a path.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from tvm_distir.core.ir.placement import Labels, P, R, placement_text
from tvm_distir.core.ops.dims import size_bytes
from tvm_distir.support import LoweringError, memoized

from .costs import RingCosts, step_cost
from .shards import Bounds, bounds_of, lacking
from .steps import Space, Step, can_exchange
from .transfer import StepTraffic
from .transition import PlannerOptions, Redistribution, Transition

State = TypeVar("State", bound=Hashable)

ALL_DIMS_STATES = 300
"""The maximum number of placements with which every dim may be sharded on the way."""
MAX_STATES = 2000
"""The maximum number of placements with which the dims of the ends, and those that an axis shards
evenly, may be sharded on the way; with more, only the dims of the ends."""
MAX_PAIRS = 1 << 22
"""The number of pairs of placements times devices above which exchanges lead to the goal only."""


def _allowed_dims(key: Transition) -> tuple[tuple[int, ...], ...]:
    """Return the dims each axis may shard on the way."""
    named = tuple(sorted({x for x in (*key.before, *key.after) if x >= 0}))
    every = tuple(range(len(key.shape)))
    even = [
        tuple(d for d, n in enumerate(key.shape) if d in named or (k > 1 and n % k == 0))
        for k in key.mesh
    ]
    for dims, most in (([every] * len(key.mesh), ALL_DIMS_STATES), (even, MAX_STATES)):
        if math.prod(len(row) + 2 for row in dims) <= most:
            return tuple(dims)
    return (named,) * len(key.mesh)


class ShortestPath(ABC, Generic[State]):
    """A search of a shortest path over states, each of which says how devices hold the tensor.

    Parameters
    ----------
    means : PlannerOptions
    key : Transition
        The shape, the mesh, and the labels of the two ends.
    start, end : State
        The two ends.
    """

    def __init__(self, means: PlannerOptions, key: Transition, start: State, end: State) -> None:
        self.means, self.key, self.costs = means, key, means.costs
        self.start, self.end = start, end
        # Along an axis that ends partial, a sum is kept; along all others it is completed.
        finish = tuple(x != P for x in key.after)
        self.space = Space(key.mesh, _allowed_dims(key), finish, means.kinds)
        self.limit, self.padded_limit = (means.limit_bytes(key, x) for x in (False, True))
        self.groups = functools.cache(key.groups)
        self.fewest_parts = min(key.parts(key.before), key.parts(key.after))
        self.goal = self._bounds(end)

    @abstractmethod
    def _labels(self, state: State) -> Labels:
        """Return the dim that each mesh axis shards in a state."""

    @abstractmethod
    def _bounds(self, state: State) -> Bounds:
        """Return the bounds of every device's shard in a state."""

    @abstractmethod
    def _priced(self, state: State) -> Iterator[tuple[Step, State, int]]:
        """Return the steps from a state, the states they lead to, and their costs."""

    def run(self) -> Redistribution:
        """Find it.

        Raises
        ------
        LoweringError
            DIST0509 when no sequence of the steps at hand stays within the memory bound.
        """
        key = self.key
        best: dict[State, int] = {self.start: 0}
        came: dict[State, tuple[State, Step]] = {}
        done: set[State] = set()
        ticket = itertools.count(1)
        queue = [(self._floor(self.start), 0, 0, self.start)]
        while queue:
            bound, count, _, state = heapq.heappop(queue)
            if state in done:
                continue
            done.add(state)
            if state == self.end:
                return self._found(best[state], came)
            for step, after, cost in self._priced(state):
                total = best[state] + cost
                if after in done or total >= best.get(after, total + 1):
                    continue
                if not self._has_room(self._labels(after)):
                    continue
                best[after], came[after] = total, (state, step)
                if after == self.end and total == bound:
                    return self._found(total, came)  # no path is cheaper
                entry = (total + self._floor(after), count + 1, next(ticket), after)
                heapq.heappush(queue, entry)
        limit = "" if self.limit is None else f"keeps every shard within {self.limit} bytes "
        raise LoweringError(
            "DIST0509",
            f'no sequence of collectives leads from "{placement_text(key.before)}" to '
            f'"{placement_text(key.after)}" of a '
            f"tensor of shape {list(key.shape)} {limit}by {', '.join(self.means.kinds)}",
            remedy="Raise the memory bound, or allow all collectives.",
        )

    def _found(self, cost: int, came: dict[State, tuple[State, Step]]) -> Redistribution:
        key, steps, at = self.key, [], self.end
        peak = key.local_bytes(self._labels(at))
        while at != self.start:
            at, step = came[at]
            steps.append(step)
            peak = max(peak, key.local_bytes(self._labels(at)))
        return Redistribution(tuple(steps[::-1]), cost, peak)

    def _cost(self, transfer: StepTraffic) -> int:
        kind, axes, size = transfer.kind, transfer.axes, transfer.payload_bytes
        return step_cost(self.costs, kind, axes, size, self.groups)

    @memoized
    def _floor(self, state: State) -> int:
        """Return a lower bound of the cost of the remaining steps."""
        elements = int(lacking(self._bounds(state), self.goal))
        if isinstance(self.costs, RingCosts):
            elements = max(elements, self._reduced(self._labels(state)))
        return self.costs.floor(size_bytes((elements,), self.key.dtype))

    def _reduced(self, labels: Labels) -> int:
        """Return a lower bound of the elements that a device sends while partial sums are reduced.

        The terms of an element reach a first device by as many messages as there are further
        terms, and each further device that has the sum in the end needs one more.
        """
        key = self.key
        terms = math.prod(n for n, x in zip(key.mesh, labels) if x == P)
        if terms == 1 or P in key.after:
            return 0
        holders = len(key.devices) // key.parts(key.after)
        return (terms + holders - 2) * math.prod(key.shape) // len(key.devices)

    def _exchanges(
        self, space: Space, labels: Labels, goal: Labels | None
    ) -> Iterator[tuple[Labels, int]]:
        """Return the placements that an exchange may reach, and the elements a device receives."""
        shape, mesh = self.key.shape, space.mesh
        source = bounds_of(shape, labels, mesh)
        if goal is not None and can_exchange(labels, goal):
            yield goal, int(lacking(source, bounds_of(shape, goal, mesh)))
            if isinstance(self.costs, RingCosts):
                return  # by bytes no detour is cheaper
        targets, bounds = self._peers(space, tuple(P if x == P else R for x in labels))
        if len(targets) ** 2 * len(self.key.devices) > MAX_PAIRS:
            return
        for after, elements in zip(targets, lacking(source, bounds).tolist()):
            if after not in (labels, goal):
                yield after, elements

    @memoized
    def _peers(self, space: Space, labels: Labels) -> tuple[list[Labels], Bounds]:
        """Return all placements with the partial axes of an unsharded one, and their bounds."""
        choices = [(P,) if x == P else (R, *d) for x, d in zip(labels, space.allowed)]
        peers = [x for x in itertools.product(*choices) if self._fits(x, space.mesh)]
        bounds = [bounds_of(self.key.shape, x, space.mesh) for x in (labels, *peers)]
        return peers, np.stack(bounds, axis=1)[:, 1:]

    @memoized
    def _has_room(self, labels: Labels) -> bool:
        key = self.key
        return labels in (key.before, key.after) or self._fits(labels, key.mesh)

    def _fits(self, labels: Labels, mesh: tuple[int, ...]) -> bool:
        """Return whether shards are within the bound, or would be without padding."""
        if self.limit is None or self.padded_limit is None:
            return True
        key, bound = self.key, self.means.memory_bound
        key = key if mesh == key.mesh else replace(key, mesh=mesh)
        size = key.local_bytes(labels)
        if size <= self.limit:
            return True
        if size > self.padded_limit or bound is None:
            return False
        return key.parts(labels) * bound >= self.fewest_parts
