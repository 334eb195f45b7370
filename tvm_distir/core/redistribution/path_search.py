# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search the cheapest steps between two placements as a shortest path (A*).

The states are placements (a label per mesh axis, partial sums included); the edges are the
collectives along mesh axes, and the *exchange*. The least bytes that a device must receive
bound the rest of the path.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

import numpy as np

from tvm_distir.core.ir.placement import Labels, P, R, placement_text
from tvm_distir.core.ops.dims import size_bytes
from tvm_distir.support import LoweringError

from .costs import Groups, RingCosts
from .shards import Bounds, bounds_of, lacking
from .steps import Space, Step, can_exchange, crossing_axes, exchange_step, steps_from
from .transfer import StepTraffic, step_transfer
from .transition import PlannerOptions, Redistribution, Transition

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


class PathSearch:
    """A search of a shortest path.

    Parameters
    ----------
    means : PlannerOptions
    key : Transition
    """

    def __init__(self, means: PlannerOptions, key: Transition) -> None:
        self.means, self.key, self.costs = means, key, means.costs
        # Along an axis that ends partial, a sum is kept; along all others it is completed.
        finish = tuple(x != P for x in key.after)
        self.space = Space(key.mesh, _allowed_dims(key), finish, means.kinds)
        self.limit, self.padded_limit = (means.limit_bytes(key, x) for x in (False, True))
        self.goal = bounds_of(key.shape, key.after, key.mesh)
        self.groups: dict[tuple[int, ...], Groups] = {}
        self.floors: dict[Labels, int] = {}
        self.rooms: dict[Labels, bool] = {}
        self.peers: dict[Labels, tuple[list[Labels], Bounds]] = {}

    def run(self) -> Redistribution:
        """Find it.

        Raises
        ------
        LoweringError
            DIST0509 when no sequence of the steps at hand stays within the memory bound.
        """
        key = self.key
        best: dict[Labels, int] = {key.before: 0}
        came: dict[Labels, tuple[Labels, Step]] = {}
        done: set[Labels] = set()
        ticket = itertools.count(1)
        queue = [(self._floor(key.before), 0, 0, key.before)]
        while queue:
            _, count, _, labels = heapq.heappop(queue)
            if labels in done:
                continue
            done.add(labels)
            if labels == key.after:
                return self._found(best[labels], came)
            for step, cost in self._priced(labels):
                after, total = step.after, best[labels] + cost
                if after in done or total >= best.get(after, total + 1):
                    continue
                if not self._has_room(after):
                    continue
                best[after], came[after] = total, (labels, step)
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

    def _found(self, cost: int, came: dict[Labels, tuple[Labels, Step]]) -> Redistribution:
        key, steps, at = self.key, [], self.key.after
        peak = key.local_bytes(at)
        while at != key.before:
            at, step = came[at]
            steps.append(step)
            peak = max(peak, key.local_bytes(at))
        return Redistribution(tuple(steps[::-1]), cost, peak)

    def _priced(self, labels: Labels) -> Iterator[tuple[Step, int]]:
        key = self.key
        for step in steps_from(self.space, labels):
            transfer = step_transfer(key.shape, labels, step, key.mesh, key.dtype)
            if transfer.kind in self.space.kinds:
                yield step, self._cost(transfer)
        if "exchange" in self.space.kinds:
            for after, elements in self._exchanges(labels):
                step = exchange_step(labels, after)
                axes = crossing_axes(labels, after)
                transfer = StepTraffic("exchange", axes, size_bytes((elements,), key.dtype))
                yield step, self._cost(transfer)

    def _cost(self, transfer: StepTraffic) -> int:
        if transfer.axes not in self.groups:
            self.groups[transfer.axes] = self.key.groups(transfer.axes)
        return self.costs.step(transfer.kind, transfer.payload_bytes, self.groups[transfer.axes])

    def _exchanges(self, labels: Labels) -> Iterator[tuple[Labels, int]]:
        """Return the placements that an exchange may reach, and the elements a device receives."""
        key = self.key
        source = bounds_of(key.shape, labels, key.mesh)
        if can_exchange(labels, key.after):
            yield key.after, int(lacking(source, self.goal))
            if isinstance(self.costs, RingCosts):
                return  # by bytes no detour is cheaper
        targets, bounds = self._peers(labels)
        if len(targets) ** 2 * len(key.devices) > MAX_PAIRS:
            return
        for after, elements in zip(targets, lacking(source, bounds).tolist()):
            if after not in (labels, key.after):
                yield after, elements

    def _peers(self, labels: Labels) -> tuple[list[Labels], Bounds]:
        """Return all placements with the same partial axes, and their bounds."""
        key = self.key
        open_axes = tuple(P if x == P else R for x in labels)
        if open_axes not in self.peers:
            choices = [(P,) if x == P else (R, *d) for x, d in zip(open_axes, self.space.allowed)]
            peers = [x for x in itertools.product(*choices) if self._has_room(x)]
            bounds = [bounds_of(key.shape, x, key.mesh) for x in peers]
            self.peers[open_axes] = peers, np.stack(bounds, axis=1)
        return self.peers[open_axes]

    def _floor(self, labels: Labels) -> int:
        """Return a lower bound of the cost of the remaining steps."""
        if labels not in self.floors:
            key = self.key
            elements = int(lacking(bounds_of(key.shape, labels, key.mesh), self.goal))
            self.floors[labels] = self.costs.floor(size_bytes((elements,), key.dtype))
        return self.floors[labels]

    def _has_room(self, labels: Labels) -> bool:
        key = self.key
        if self.limit is None or self.padded_limit is None or labels in (key.before, key.after):
            return True
        if labels not in self.rooms:
            size = key.local_bytes(labels)
            fits = size <= self.limit
            self.rooms[labels] = fits or (size <= self.padded_limit and self._is_padding(labels))
        return self.rooms[labels]

    def _is_padding(self, labels: Labels) -> bool:
        """Return whether shards without padding would stay within the bound."""
        key, bound = self.key, self.means.memory_bound
        fewest = min(key.parts(key.before), key.parts(key.after))
        return bound is not None and key.parts(labels) * bound >= fewest
