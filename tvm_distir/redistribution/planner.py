# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From one placement to another on the same mesh: the cheapest steps within a memory bound.

The states are placements (one label per mesh axis, partial sums included); the edges are the
collectives along mesh axes, and the *exchange*, in which every device gets exactly the tiles of
its new shard that it lacks. The cheapest sequence is a shortest path (A*), found by what a device
must receive at least. So a tensor is never gathered whole where an exchange does, slices come
before gathers, and reductions scatter before anything else moves.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import LoweringError, UsageError
from ..ir import Labels, P, R, local_shape, placement_text
from ..ops import size_bytes
from ..system import System
from .costs import Costs, Groups, RingCosts, SystemCosts
from .shards import Bounds, bounds_of, lacking
from .steps import KINDS, Space, Step, can_exchange, exchange_step, steps_from
from .wire import Wire, step_wire

ALL_DIMS_STATES = 300
"""Up to so many placements every dim may be sharded on the way."""
MAX_STATES = 2000
"""Up to so many, the dims of the ends and what an axis cuts evenly; else the former only."""
MAX_PAIRS = 1 << 22
"""From more pairs of placements times devices than this, exchanges lead to the goal only."""
PADDING_PARTS = 8
"""Padding alone may make a shard on the way larger than the bound, by one part in so many."""
MAX_PLANS = 1 << 15
"""Plans that a planner keeps."""


@dataclass(frozen=True)
class Plan:
    """A sequence of steps.

    Attributes
    ----------
    steps : tuple of Step
    cost : int
        In the unit of the planner's costs.
    peak_bytes : int
        Of one device's shard, the ends and all that lies between.
    """

    steps: tuple[Step, ...]
    cost: int
    peak_bytes: int


@dataclass(frozen=True)
class Transition:
    """What is to be done: the key under which a plan is kept."""

    shape: tuple[int, ...]
    dtype: str
    before: Labels
    after: Labels
    mesh: tuple[int, ...]
    devices: tuple[int, ...]

    def local_bytes(self, labels: Labels) -> int:
        """Bytes of one (padded) shard."""
        return size_bytes(tuple(local_shape(self.shape, labels, self.mesh)), self.dtype)

    def parts(self, labels: Labels) -> int:
        """Into how many shards the tensor is cut."""
        return math.prod(n for n, label in zip(self.mesh, labels) if label >= 0)

    def groups(self, axes: Sequence[int]) -> Groups:
        """Device ids of the groups along the product of axes."""
        table = np.array(self.devices).reshape(self.mesh)
        rest = [a for a in range(len(self.mesh)) if a not in axes]
        rows = table.transpose([*rest, *axes]).reshape(-1, math.prod(self.mesh[a] for a in axes))
        return [[int(d) for d in row] for row in rows]


class Planner:
    """Finds and keeps the cheapest steps of redistributions.

    Parameters
    ----------
    system : System, optional
        Prices steps by its bandwidths and latencies. Without one, bytes on the wire count
        (:class:`.costs.RingCosts`).
    memory_bound : float, optional
        No shard on the way may be larger than this times the larger end (at least 1), but for
        padding that is less than an eighth of it; None for no bound.
    memory_bytes : int, optional
        Nor larger than this, ends apart.
    kinds : sequence of str
        The steps at hand, of :data:`.steps.KINDS`.
    innermost : bool
        Move data along the innermost mesh axes only, see :class:`.steps.Space`.

    Raises
    ------
    UsageError
        DIST0150 for a bound below 1.
    """

    def __init__(
        self,
        system: System | None = None,
        memory_bound: float | None = 1.0,
        memory_bytes: int | None = None,
        kinds: Sequence[str] = KINDS,
        innermost: bool = False,
    ) -> None:
        if memory_bound is not None and not memory_bound >= 1:
            raise UsageError(
                "DIST0150",
                f"the memory bound {memory_bound} is below 1: the ends would not fit",
                place="LegalizeRedistribute",
                remedy="Give 1.0 or more, or None for no bound.",
            )
        self.costs: Costs = RingCosts() if system is None else SystemCosts(system)
        self.memory_bound, self.memory_bytes = memory_bound, memory_bytes
        self.kinds, self.innermost = tuple(kinds), innermost
        self._plans: OrderedDict[Transition, Plan] = OrderedDict()

    def plan(
        self,
        shape: Sequence[int],
        before: Sequence[int],
        after: Sequence[int],
        mesh: Sequence[int],
        dtype: str = "float32",
        devices: Sequence[int] | None = None,
    ) -> Plan:
        """Cheapest plan between two placements of one mesh.

        Parameters
        ----------
        shape : sequence of int
            Whole shape of the tensor.
        before, after : sequence of int
            One label per mesh axis: a dim, ``R`` or ``P``.
        mesh : sequence of int
            Sizes of the mesh axes.
        dtype : str
        devices : sequence of int, optional
            Device ids, row-major over the mesh; 0, 1, ... by default.

        Raises
        ------
        LoweringError
            DIST0509 when no sequence of the steps at hand stays within the memory bound.
        """
        sizes = tuple(int(n) for n in mesh)
        ids = tuple(devices) if devices is not None else tuple(range(math.prod(sizes)))
        key = Transition(
            tuple(int(n) for n in shape), dtype, tuple(before), tuple(after), sizes, ids
        )
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = _Search(self, key).run()
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return found

    def limit_bytes(self, key: Transition, padded: bool = False) -> int | None:
        """Largest shard that may lie between the ends; None: any.

        ``padded``: of those that only their padding makes larger than the bound.
        """
        limits = [] if self.memory_bytes is None else [self.memory_bytes]
        if self.memory_bound is not None:
            ends = max(key.local_bytes(key.before), key.local_bytes(key.after))
            bound = math.floor(self.memory_bound * ends)
            limits.append(bound + bound // PADDING_PARTS if padded else bound)
        return min(limits, default=None)


_DEFAULT = Planner()


def plan_steps(
    shape: Sequence[int],
    src_labels: Sequence[int],
    dst_labels: Sequence[int],
    mesh: Sequence[int],
    dtype: str = "float32",
) -> list[Step]:
    """Steps of the cheapest plan by bytes, see :meth:`Planner.plan`; none between equals."""
    return list(_DEFAULT.plan(shape, src_labels, dst_labels, mesh, dtype).steps)


def _allowed_dims(key: Transition) -> tuple[tuple[int, ...], ...]:
    """Dims each axis may shard on the way."""
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


class _Search:
    """One shortest path."""

    def __init__(self, planner: Planner, key: Transition) -> None:
        self.planner, self.key, self.costs = planner, key, planner.costs
        # Along an axis that ends partial, a sum is kept; along all others it is completed.
        finish = tuple(x != P for x in key.after)
        self.space = Space(key.mesh, _allowed_dims(key), finish, planner.kinds, planner.innermost)
        self.limit, self.padded_limit = (planner.limit_bytes(key, x) for x in (False, True))
        self.goal = bounds_of(key.shape, key.after, key.mesh)
        self.groups: dict[tuple[int, ...], Groups] = {}
        self.floors: dict[Labels, int] = {}
        self.rooms: dict[Labels, bool] = {}
        self.meetings: dict[Labels, tuple[list[Labels], Bounds]] = {}

    def run(self) -> Plan:
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
                return self._plan(best[labels], came)
            for step, price in self._priced(labels):
                after, total = step.after, best[labels] + price
                if after in done or total >= best.get(after, total + 1):
                    continue
                if not self._has_room(after):
                    continue
                best[after], came[after] = total, (labels, step)
                entry = (total + self._floor(after), count + 1, next(ticket), after)
                heapq.heappush(queue, entry)
        room = "" if self.limit is None else f"keeps every shard within {self.limit} bytes "
        where = " along the innermost mesh axes" if self.planner.innermost else ""
        raise LoweringError(
            "DIST0509",
            f'no way from "{placement_text(key.before)}" to "{placement_text(key.after)}" of a '
            f"tensor of shape {list(key.shape)} {room}by {', '.join(self.planner.kinds)}{where}",
            remedy="Raise the memory bound, or allow all collectives.",
        )

    def _plan(self, cost: int, came: dict[Labels, tuple[Labels, Step]]) -> Plan:
        key, steps, at = self.key, [], self.key.after
        peak = key.local_bytes(at)
        while at != key.before:
            at, step = came[at]
            steps.append(step)
            peak = max(peak, key.local_bytes(at))
        return Plan(tuple(steps[::-1]), cost, peak)

    def _priced(self, labels: Labels) -> Iterator[tuple[Step, int]]:
        key = self.key
        for step in steps_from(self.space, labels):
            wire = step_wire(key.shape, labels, step, key.mesh, key.dtype)
            if wire.kind in self.space.kinds:
                yield step, self._price(wire)
        if "exchange" in self.space.kinds:
            for after, elements in self._exchanges(labels):
                step = exchange_step(labels, after)
                wire = Wire("exchange", step.axes, size_bytes((elements,), key.dtype))
                yield step, self._price(wire)

    def _price(self, wire: Wire) -> int:
        if wire.axes not in self.groups:
            self.groups[wire.axes] = self.key.groups(wire.axes)
        return self.costs.step(wire.kind, wire.payload_bytes, self.groups[wire.axes])

    def _exchanges(self, labels: Labels) -> Iterator[tuple[Labels, int]]:
        """Placements that an exchange may lead to, and the elements it brings a device."""
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
        """All placements with the same partial axes, and their bounds."""
        key = self.key
        form = tuple(P if x == P else R for x in labels)
        if form not in self.meetings:
            choices = [(P,) if x == P else (R, *d) for x, d in zip(form, self.space.allowed)]
            found = [x for x in itertools.product(*choices) if self._has_room(x)]
            bounds = [bounds_of(key.shape, x, key.mesh) for x in found]
            self.meetings[form] = found, np.stack(bounds, axis=1)
        return self.meetings[form]

    def _floor(self, labels: Labels) -> int:
        """Price that the rest of the way costs at least."""
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
        """Whether shards without padding would stay within the bound."""
        key, bound = self.key, self.planner.memory_bound
        fewest = min(key.parts(key.before), key.parts(key.after))
        return bound is not None and key.parts(labels) * bound >= fewest
