# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the critical path of a pipelined step as a sum of cost terms.

Units, messages and sums over stages run as :func:`~.simulator.simulate` runs them with
collectives that block; every event remembers the event that it waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tvm_distir.core.plan import BACKWARD, FORWARD, RUN, SEND, PipelineAction, RankStep, programs
from tvm_distir.performance import Edge

from .cost_terms import CostTerms, StepCostTerms

Price = Callable[[CostTerms], float]


class _Event(NamedTuple):
    end: float
    before: int
    what: int


class _Walk:
    """Event-by-event run of a step."""

    def __init__(self, parts: StepCostTerms, price: Price) -> None:
        self.parts, self.staged, self.price = parts, parts.staged, price
        self.rank_of = self.staged.schedule.rank_of
        self.events = [_Event(0.0, -1, -1)]
        self.work: list[CostTerms] = []
        self._number: dict[int, tuple[int, float]] = {}
        count = self.staged.schedule.stages
        self.computed, self.sent = [0] * count, [0] * count  # last event of the streams
        self.last_of: dict[tuple[int, str], int] = {}  # last part or total of a stage
        self.value: dict[tuple[int, int, str], int] = {}
        self.arrived: dict[tuple[int, int, str], list[int]] = {}
        self.ran: set[tuple[int, str]] = set()
        self.edges: dict[tuple[int, str], list[Edge]] = {}
        for edge in self.staged.edges:
            self.edges.setdefault((edge.source[0], edge.direction), []).append(edge)

    def run(self) -> tuple[float, Counter[int]]:
        """Return the time of the step, and how often each work is on the critical path."""
        stages = range(len(self.rank_of))
        for stage in stages:
            self._unit(stage, "begin")
        steps = programs(self.staged.schedule)
        place, moved = [0] * len(steps), True
        while moved:
            moved = False
            for rank, rank_steps in enumerate(steps):
                while place[rank] < len(rank_steps) and self._step(rank_steps[place[rank]]):
                    place[rank] += 1
                    moved = True
        for number in range(len(self.staged.sums)):
            self._sum(number)
        for stage in stages:
            self._unit(stage, "end")
        last = max(range(len(self.events)), key=lambda n: self.events[n].end)
        time_s, counts = self.events[last].end, Counter[int]()
        while last > 0:
            counts[self.events[last].what] += 1
            last = self.events[last].before
        return time_s, counts

    def _event(self, parts: CostTerms, waits: list[int]) -> int:
        cached = self._number.get(id(parts))
        if cached is None:
            cached = self._number[id(parts)] = (len(self.work), self.price(parts))
            self.work.append(parts)
        before = max(waits, key=lambda n: self.events[n].end)
        self.events.append(_Event(self.events[before].end + cached[1], before, cached[0]))
        return len(self.events) - 1

    def _step(self, step: RankStep) -> bool:
        kind, stage, unit = step.kind, step.stage, step.unit
        if kind == RUN:
            self._run(stage, unit)
            return True
        direction = "forward" if unit.phase == FORWARD else "backward"
        if kind == SEND:
            for edge in self.edges.get((stage, direction), ()):
                source = self.value.get((stage, unit.micro, unit.phase), 0)
                message = (edge.target[0], unit.micro, direction)
                self.arrived.setdefault(message, []).append(self._send(edge, source))
            return True
        return (stage, unit.micro, direction) in self.arrived

    def _run(self, stage: int, unit: PipelineAction) -> None:
        name = unit.phase
        if (stage, name) in self.ran and self.parts.phases(stage, f"{name}+"):
            name = f"{name}+"
        self.ran.add((stage, name))
        direction = {FORWARD: "forward", BACKWARD: "backward"}.get(unit.phase, "")
        waits = self.arrived.get((stage, unit.micro, direction), [])
        self._unit(stage, name, waits, unit)
        for edge in self.edges.get((stage, direction), ()):
            if self.rank_of[edge.target[0]] == self.rank_of[stage]:
                source = self.value[stage, unit.micro, unit.phase]
                message = (edge.target[0], unit.micro, direction)
                self.arrived.setdefault(message, []).append(source)

    def _unit(
        self, stage: int, name: str, waits: Sequence[int] = (), unit: PipelineAction | None = None
    ) -> None:
        rank = self.rank_of[stage]
        for phase, parts in self.parts.phases(stage, name):
            self.computed[rank] = self._event(parts, [self.computed[rank], *waits])
            if unit is not None and phase in ("forward", "backward"):
                self.value[stage, unit.micro, unit.phase] = self.computed[rank]

    def _send(self, edge: Edge, source: int) -> int:
        first, second = (self.rank_of[end[0]] for end in (edge.source, edge.target))
        if first == second:
            return source
        self.sent[first] = self._event(self.parts.edge(edge), [self.sent[first], source])
        return self.sent[first]

    def _sum(self, number: int) -> None:
        stage_sum = self.staged.sums[number]
        chain = {e.target[0]: e for e in stage_sum.edges if e.direction == "sum"}
        total: dict[int, int] = {}
        for stage in stage_sum.stages:
            place, rank = self.staged.sums_of(stage).index(number), self.rank_of[stage]
            self._unit(stage, f"part:{place}")
            if stage in chain:
                edge = chain[stage]
                arrival = self._send(edge, total[edge.source[0]])
                self._unit(stage, f"add:{place}", [arrival])
            total[stage] = self.computed[rank]
        for edge in stage_sum.edges:
            if edge.direction == "total":
                rank = self.rank_of[edge.target[0]]
                arrival = self._send(edge, total[edge.source[0]])
                self.computed[rank] = max(
                    self.computed[rank], arrival, key=lambda n: self.events[n].end
                )


def longest_path(parts: StepCostTerms, price: Price) -> tuple[float, CostTerms]:
    """Return the time of a step, and the parts on its critical path.

    Parameters
    ----------
    parts : StepCostTerms
    price : callable
        Seconds of parts that run in sequence.
    """
    walk = _Walk(parts, price)
    time_s, counts = walk.run()
    whole = CostTerms()
    for number, count in counts.items():
        whole.add(walk.work[number], count)
    return time_s, whole
