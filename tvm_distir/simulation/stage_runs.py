# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A step in stages run unit by unit: when each starts, when each message goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import SimulationError
from ..program import BEGIN, END, UPDATE, Edge, Program, Staged
from ..schedules import BACKWARD, FORWARD, RUN, SEND, WEIGHT, Step, Unit, programs
from .costs import OpCosts
from .rank_state import Message, RankState, Runs
from .stage_kinds import Kinds

Ints = npt.NDArray[np.int64]


class StageRuns:
    """Runs all ranks.

    Parameters
    ----------
    program : Program
    staged : Staged
    kinds : Kinds
        Units of each rank, with their summaries.
    costs : OpCosts

    Attributes
    ----------
    ranks : list of RankState
    """

    def __init__(self, program: Program, staged: Staged, kinds: Kinds, costs: OpCosts) -> None:
        self.program, self.staged, self.kinds, self.costs = program, staged, kinds, costs
        self.rank_of = staged.schedule.rank_of
        self.ranks = [RankState() for _ in range(staged.schedule.stages)]
        self.last_phase = WEIGHT if staged.schedule.splits_backward else BACKWARD
        self._edge_ps: dict[int, int] = {}
        self.arrived: set[tuple[int, int, str]] = set()
        self.edges: dict[tuple[int, str], list[Edge]] = {}
        for edge in staged.edges:
            self.edges.setdefault((edge.source[0], edge.direction), []).append(edge)
        for stage, rank in enumerate(self.rank_of):
            slots = len(staged.role_of(stage).slots)
            self.ranks[rank].once[stage] = np.full(slots, -1, np.int64)

    def run(self) -> None:
        """Run begin, units and messages in the schedule's order, sums over stages, end.

        Raises
        ------
        SimulationError
            DIST0720 where ranks wait for each other.
        """
        for stage in range(len(self.rank_of)):
            self._unit(stage, BEGIN, -1)
        steps = programs(self.staged.schedule)
        position = [0] * len(steps)
        moved = True
        while moved:
            moved = False
            for rank, own in enumerate(steps):
                while position[rank] < len(own) and self._step(own[position[rank]]):
                    position[rank] += 1
                    moved = True
        stuck = [rank for rank, own in enumerate(steps) if position[rank] < len(own)]
        if stuck:
            step = steps[stuck[0]][position[stuck[0]]]
            raise SimulationError(
                "DIST0720",
                f"the ranks {stuck} never go on: rank {stuck[0]} waits for {list(step.unit)}",
                place="schedule",
                remedy="Order units so that what each needs comes before.",
            )
        for number in range(len(self.staged.sums)):
            self._sum(number)
        for stage in range(len(self.rank_of)):
            self._unit(stage, END, -1)

    def _step(self, step: Step) -> bool:
        """Do a step, if what it waits for is there."""
        if step.kind == RUN:
            self._run(step.stage, step.unit)
            return True
        direction = "forward" if step.unit.phase == FORWARD else "backward"
        if step.kind == SEND:
            for edge in self.edges.get((step.stage, direction), ()):
                self._send(edge, step.unit.micro)
            self.arrived.add((step.peer, step.unit.micro, direction))
            return True
        return (step.stage, step.unit.micro, direction) in self.arrived

    def _run(self, stage: int, unit: Unit) -> None:
        """Run a unit of the schedule, and hand on what stays on the rank."""
        state = self.ranks[self.rank_of[stage]]
        name = unit.phase
        later = f"{name}+"
        if (stage, name) in state.runs and self.kinds.has(stage, later):
            name = later
        stash = self.staged.schedule.stash
        if unit.phase == FORWARD and stash:  # the weights as they are now
            params = list(self.staged.role_of(stage).params)
            self._slots(stage, unit.micro)[params] = state.once[stage][params]
        self._unit(stage, name, unit.micro)
        if unit.phase == FORWARD:
            once = state.once[stage]
            for read, written in self.staged.role_of(stage).carried:
                once[read] = once[written]
        if unit.phase == self.last_phase and stash:
            self._update(stage)
        direction = {FORWARD: "forward", BACKWARD: "backward"}.get(unit.phase, "")
        for edge in self.edges.get((stage, direction), ()):
            if self.rank_of[edge.target[0]] == self.rank_of[stage]:
                self._hand_over(edge, unit.micro)

    def _update(self, stage: int) -> None:
        """Update weights behind a micro-batch: later ones begin with those."""
        self._unit(stage, UPDATE, -1)
        slots = self._slots(stage, -1)
        for param, result in self.staged.role_of(stage).updated:
            slots[param] = slots[result]

    def _slots(self, stage: int, micro: int) -> Ints:
        """Instances in the slots of a micro-batch, or of what is there once."""
        state = self.ranks[self.rank_of[stage]]
        if micro < 0:
            return state.once[stage]
        if (stage, micro) not in state.micros:
            state.micros[stage, micro] = np.full_like(state.once[stage], -1)
        return state.micros[stage, micro]

    def _unit(self, stage: int, name: str, micro: int) -> None:
        """Run a unit as soon as its streams and operands allow."""
        if not self.kinds.has(stage, name):
            return
        state, unit = self.ranks[self.rank_of[stage]], self.kinds.unit(stage, name)
        runs = state.runs.get((stage, name))
        if runs is None:
            runs = state.runs[stage, name] = Runs(unit, stage, name)
        once, own, summary = state.once[stage], self._slots(stage, micro), unit.summary
        inputs = np.where(unit.input_once, once[unit.inputs], own[unit.inputs])
        ready = state.ready
        times = state.streams[:2] + [ready.get(i, 0) for i in inputs[summary.timed].tolist()]
        if micro < 0:
            runs.starts.append(summary.starts_at(times))
            out = summary.finish(times, runs.starts[-1])
        else:
            out = (summary.ends + np.array(times, np.int64)).max(axis=1)
        state.streams[:2] = out[:2].tolist()
        first = state.instances
        state.instances += summary.kept.size
        for place in unit.watched:
            state.ready[first + place] = int(out[2 + place])
        made = np.where(summary.result_kept >= 0, first + summary.result_kept, -1)
        if unit.aliases:
            alias = summary.result_param >= 0
            made[alias] = inputs[summary.result_param[alias]]
        once[unit.outputs[unit.output_once]] = made[unit.output_once]
        own[unit.outputs[~unit.output_once]] = made[~unit.output_once]
        runs.micros.append(micro)
        runs.times.append(times)
        runs.inputs.append(inputs)
        runs.first.append(first)

    def _hand_over(self, edge: Edge, micro: int) -> None:
        """Give a value to another stage of the same rank."""
        value = self._slots(edge.source[0], micro)[edge.source[1]]
        self._slots(edge.target[0], micro)[edge.target[1]] = value

    def _send(self, edge: Edge, micro: int) -> None:
        """Send a value as soon as it is made and the message before has gone."""
        here, there = (self.rank_of[end[0]] for end in (edge.source, edge.target))
        sender, receiver = self.ranks[here], self.ranks[there]
        value = int(self._slots(edge.source[0], micro)[edge.source[1]])
        start = max(sender.streams[2], sender.ready.get(value, 0))
        if id(edge) not in self._edge_ps:
            self._edge_ps[id(edge)] = max(self.costs.edge_ps(edge, here, there))
        end = start + self._edge_ps[id(edge)]
        sender.streams[2] = end
        sender.sent.append(Message(edge, micro, value, start, end))
        arrived = receiver.instances
        receiver.instances += 1
        receiver.ready[arrived] = end
        receiver.received.append(Message(edge, micro, arrived, start, end))
        self._slots(edge.target[0], micro)[edge.target[1]] = arrived

    def _sum(self, number: int) -> None:
        """Make a sum over stages: each adds its own term, the last one tells all."""
        one = self.staged.sums[number]
        chain = {e.target[0]: e for e in one.edges if e.direction == "sum"}
        for stage in one.stages:
            place = self.staged.sums_of(stage).index(number)
            part, total = self.staged.role_of(stage).sums[place]
            self._unit(stage, f"part:{place}", -1)
            if stage not in chain:
                slots = self._slots(stage, -1)
                slots[total] = slots[part]
                continue
            self._move(chain[stage])
            self._unit(stage, f"add:{place}", -1)
        told = [e for e in one.edges if e.direction == "total"]
        for edge in told:
            self._move(edge)
        self._share(one.stages, number, {edge.target[0] for edge in told})

    def _share(self, stages: Sequence[int], number: int, told: set[int]) -> None:
        """Stages that were not told take the sum of one of their rank."""
        known: dict[int, int] = {}
        for stage in (*told, stages[-1]):
            known[self.rank_of[stage]] = int(self._slots(stage, -1)[self._total(stage, number)])
        for stage in stages:
            self._slots(stage, -1)[self._total(stage, number)] = known[self.rank_of[stage]]

    def _total(self, stage: int, number: int) -> int:
        """Slot of a sum."""
        return self.staged.role_of(stage).sums[self.staged.sums_of(stage).index(number)][1]

    def _move(self, edge: Edge) -> None:
        if self.rank_of[edge.source[0]] == self.rank_of[edge.target[0]]:
            self._hand_over(edge, -1)
        else:
            self._send(edge, -1)
