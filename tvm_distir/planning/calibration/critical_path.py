# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the critical path of a pipelined step as a sum of cost terms.

Units, messages and sums over stages run as :func:`~.simulator.simulate` runs them with
collectives that block; every event remembers the event that it waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tvm_distir.performance import RankWalk

from .cost_terms import CostTerms, StepCostTerms

CostFunction = Callable[[CostTerms], float]


class _Event(NamedTuple):
    end: float
    before: int
    what: int


class _Walk(RankWalk[int]):
    """Event-by-event run of a step: tokens are events."""

    def __init__(self, parts: StepCostTerms, cost: CostFunction) -> None:
        self.steps = parts.steps
        super().__init__(self.steps.kinds.maps, self.steps.units, 0, 0)
        self.parts, self.cost = parts, cost
        self.events = [_Event(0.0, -1, -1)]
        self.work: list[CostTerms] = []
        self._number: dict[int, tuple[int, float]] = {}

    def path(self) -> tuple[float, Counter[int]]:
        """Return the time of the step, and how often each work is on the critical path."""
        self.advance()
        last = max(range(len(self.events)), key=self._end)
        time_s, counts = self.events[last].end, Counter[int]()
        while last > 0:
            counts[self.events[last].what] += 1
            last = self.events[last].before
        return time_s, counts

    def _end(self, event: int) -> float:
        return self.events[event].end

    def _event(self, parts: CostTerms, waits: list[int]) -> int:
        cached = self._number.get(id(parts))
        if cached is None:
            cached = self._number[id(parts)] = (len(self.work), self.cost(parts))
            self.work.append(parts)
        before = max(waits, key=self._end)
        self.events.append(_Event(self.events[before].end + cached[1], before, cached[0]))
        return len(self.events) - 1

    def run(
        self, rank: int, step: int, micro: int, streams: list[int], ports: list[int]
    ) -> tuple[list[int], list[int]]:
        """Run the phases of a unit one after the other."""
        kind, (compute, *others) = self.steps.runs[step], streams
        writers: dict[int, int] = {}
        for phase, parts in self.parts.phases(kind.stage, kind.name):
            compute = self._event(parts, [compute, *ports])
            writers.update(dict.fromkeys(phase.outputs, compute))
        outputs, stored = kind.unit.outputs, self.stored[int(self.units.steps[step, 1])]
        return [compute, *others], [writers[outputs[result]] for result in stored]

    def send(self, rank: int, edge: int, micro: int, stream: int, value: int) -> tuple[int, int]:
        """Send a message behind those before it."""
        event = self._event(self.parts.edge(self.steps.edges[edge]), [stream, value])
        return event, event

    def join(self, rank: int, stream: int, first: int, second: int) -> int:
        """See :class:`~tvm_distir.performance.RankWalk`."""
        return max(first, second, key=self._end)


def longest_path(parts: StepCostTerms, cost: CostFunction) -> tuple[float, CostTerms]:
    """Return the time of a step, and the parts on its critical path.

    Parameters
    ----------
    parts : StepCostTerms
    cost : callable
        Seconds of parts that run in sequence.
    """
    walk = _Walk(parts, cost)
    time_s, counts = walk.path()
    total = CostTerms()
    for number, count in counts.items():
        total.add(walk.work[number], count)
    return time_s, total
