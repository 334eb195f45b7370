# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run activities that share links in plain Python, with max-min fair speeds at every event."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from tests.references.rank_units import times_of
from tvm_distir.performance.event_loop.activities import (
    ALL_ALONG,
    AT_ZERO,
    FLOW,
    JOIN,
    Activities,
    Loads,
)
from tvm_distir.performance.event_loop.function_summaries import NEVER, Ints

EXACT = 1 << 53
"""Times up to which a float64 is exact."""
SLOWEST = 1e-6
"""Least speed: what rounding leaves of a link that is full."""
ROUNDING = 1e-9
"""A link is full beyond this much more than its capacity."""


def fair_speeds(
    most: Sequence[float], loads: Sequence[Mapping[int, float]], capacity: Sequence[float]
) -> list[float]:
    """Return max-min fair speeds: none can grow but by slowing one that is no faster.

    Faster is who puts more on the link that it loads most.

    Parameters
    ----------
    most : sequence of float
        Speed of each activity where it meets nothing.
    loads : sequence of mapping of int to float
        By activity what it puts on links at speed 1, one load at least.
    capacity : sequence of float
        Of the links.
    """
    result = list(most)
    total: dict[int, float] = {}
    for local, speed in zip(loads, most, strict=True):
        for link, load in local.items():
            total[link] = total.get(link, 0.0) + load * speed
    if all(load <= capacity[link] * (1.0 + ROUNDING) for link, load in total.items()):
        return result
    left = {link: capacity[link] for link in total}
    peak = [max(local.values()) for local in loads]
    pending = list(range(len(loads)))
    while pending:
        weight: dict[int, float] = {}
        for each in pending:
            for link, load in loads[each].items():
                weight[link] = weight.get(link, 0.0) + load / peak[each]
        level = min(left[link] / weight[link] for link in weight)
        chosen = [each for each in pending if most[each] * peak[each] <= level]
        if not chosen:
            full = {link for link in weight if left[link] / weight[link] == level}
            chosen = [each for each in pending if not full.isdisjoint(loads[each])]
            for each in chosen:
                result[each] = max(level / peak[each], SLOWEST)
        for each in chosen:
            for link, load in loads[each].items():
                left[link] = max(left[link] - load * result[each], 0.0)
        removed = set(chosen)
        pending = [each for each in pending if each not in removed]
    return result


def contend(activities: Activities, loads: Loads) -> tuple[Ints, Ints]:
    """Return the times of all tokens, and where the speeds of units change.

    Raises
    ------
    OverflowError
        For times beyond 2**53 picoseconds.
    """
    return Contention(activities, loads).go()


class Contention:
    """A run of activities.

    Attributes
    ----------
    time : list of int
        Of the tokens.
    clock : list of (int, int, int)
        Where the speed of a unit changes: activity, time at full speed, time.
    """

    def __init__(self, activities: Activities, loads: Loads) -> None:
        self.activities, self.loads = activities, loads
        self._ins = activities.ins.tolist()
        self._in_begin = activities.in_begin.tolist()
        self._out_begin = activities.out_begin.tolist()
        self._kind = activities.kind.tolist()
        self._rank = activities.rank.tolist()
        self._group = activities.group.tolist()
        self.time = [NEVER] * self._out_begin[-1]
        self.clock: list[tuple[int, int, int]] = []
        self._readers: list[list[int]] = [[] for _ in self.time]
        self._missing = [0] * len(self._kind)
        for each in range(len(self._kind)):
            for token in self._ins[self._in_begin[each] : self._in_begin[each + 1]]:
                self._readers[token].append(each)
                self._missing[each] += 1
        self._ready: deque[int] = deque(each for each, n in enumerate(self._missing) if not n)
        self._active: list[_Active] = []
        self._now = 0

    def go(self) -> tuple[Ints, Ints]:
        """Return the times of all tokens, and the clock."""
        self._come(ALL_ALONG, NEVER)
        self._come(AT_ZERO, 0)
        changed = True
        while True:
            while self._ready:
                changed |= self._begin(self._ready.popleft())
            if not self._active:
                return np.array(self.time, np.int64), np.array(self.clock, np.int64).reshape(-1, 3)
            if changed:
                self._hasten()
            changed = self._advance()

    def _come(self, token: int, time: int) -> None:
        self.time[token] = time
        for each in self._readers[token]:
            self._missing[each] -= 1
            if not self._missing[each]:
                self._ready.append(each)

    def _begin(self, number: int) -> bool:
        """Begin an activity; return whether it takes any more time."""
        tokens = self._ins[self._in_begin[number] : self._in_begin[number + 1]]
        times = [self.time[token] for token in tokens]
        kind, token, origin = self._kind[number], self._out_begin[number], self._now
        if kind == JOIN:
            self._come(token, max(times))
            return False
        if kind == FLOW:
            origin = max(times)
            ends = [origin + int(self.activities.durations[number])]
        else:
            local, begin = self.activities, int(self.activities.matrix_begin[kind])
            ports = int(local.matrix_ports[kind])
            count = self._out_begin[number + 1] - token
            matrix = local.matrix[begin : begin + count * ports].reshape(count, ports)
            ends = times_of(matrix, np.array(times, np.int64)[:, None])[:, 0].tolist()
        later = []
        for position, end in enumerate(ends):
            if end <= self._now:
                self._come(token + position, end)
            else:
                later.append((end, token + position))
        if not later:
            return False
        later.sort(reverse=True)
        first = int(self.loads.piece_begin[self._group[number]])
        single = _Active(number, float(origin), float(self._now), later, first)
        single.turn(self.loads)
        self._active.append(single)
        return True

    def _hasten(self) -> None:
        """Give all activities the speeds of this moment."""
        loads = self.loads
        slowed: set[int] = set()
        for each in self._active:
            if self._kind[each.number] == FLOW and each.loads:
                slowed.update(loads.slows[self._group[each.number]].tolist())
        most = []
        for each in self._active:
            speed = float(loads.speed[each.piece])
            unit = self._kind[each.number] != FLOW
            if unit and self._rank[each.number] in slowed:
                speed = min(speed, loads.beside)
            most.append(speed)
        at = [position for position, single in enumerate(self._active) if single.loads]
        result = fair_speeds(
            [most[position] for position in at],
            [self._active[position].loads for position in at],
            loads.capacity.tolist(),
        )
        for position, speed in zip(at, result, strict=True):
            most[position] = speed
        for each, speed in zip(self._active, most, strict=True):
            if speed != each.speed and self._kind[each.number] != FLOW:
                self.clock.append((each.number, math.floor(each.clock + 0.5), self._now))
            each.speed = speed

    def _advance(self) -> bool:
        """Go on to the next event; return whether speeds may change."""
        when = [each.next_at(self._now, self.loads) for each in self._active]
        now, changed = min(when), False
        if now > EXACT:
            raise OverflowError("a time is too long")
        duration, self._now = now - self._now, now
        for each, local in zip(self._active, when, strict=True):
            if local > now:
                each.clock += each.speed * duration
                continue
            each.clock = each.goal(self.loads)
            while each.later and each.later[-1][0] <= each.clock:
                self._come(each.later.pop()[1], now)
            if each.turn(self.loads) or not each.later:
                changed = True
            if not each.later and each.speed != 1.0 and self._kind[each.number] != FLOW:
                self.clock.append((each.number, math.floor(each.clock + 0.5), now))
        self._active = [each for each in self._active if each.later]
        return changed


class _Active:
    """An activity under way: its clock shows how late it would be at full speed."""

    def __init__(
        self, number: int, origin: float, clock: float, later: list[tuple[int, int]], piece: int
    ) -> None:
        self.number, self.origin, self.clock, self.later = number, origin, clock, later
        self.piece, self.speed = piece, 1.0
        self.loads: dict[int, float] = {}

    def turn(self, loads: Loads) -> bool:
        """Take the piece of this moment; return whether it is another piece."""
        before = self.piece
        while self.origin + float(loads.until[self.piece]) <= self.clock:
            self.piece += 1
        local = slice(*loads.load_begin[self.piece : self.piece + 2].tolist())
        self.loads = dict(zip(loads.link[local].tolist(), loads.load[local].tolist(), strict=True))
        return self.piece != before

    def goal(self, loads: Loads) -> float:
        """Return what the clock shows at its next event."""
        return min(float(self.later[-1][0]), self.origin + float(loads.until[self.piece]))

    def next_at(self, now: int, loads: Loads) -> int:
        """Return the time of its next event."""
        return now + math.floor((self.goal(loads) - self.clock) / self.speed + 0.5)
