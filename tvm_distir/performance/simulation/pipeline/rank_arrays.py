# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the program of each rank of a pipelined step as arrays, per kind of unit.

A rank begins with the work that its stages do once, runs the units of the schedule, takes its part
in the sums over stages, and ends. A message leaves as soon as its value is made and the message
before it has gone; its receive occupies nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tvm_distir.core.plan import BACKWARD, FORWARD, PHASES, WEIGHT, PipelineAction, stages_of
from tvm_distir.hardware import System
from tvm_distir.performance.event_loop.function_summaries import Ints
from tvm_distir.performance.event_loop.rank_programs import (
    COPY,
    RECV,
    RUN,
    SEND,
    SEND_STREAM,
    RankPrograms,
)
from tvm_distir.performance.program.pipeline_program import Edge, PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import BEGIN, END
from tvm_distir.performance.program.unit_phases import UPDATE
from tvm_distir.performance.simulation.op_costs import OpCosts

from .rank_classes import RankClasses
from .run_kinds import RunKind, StepNumbers
from .stash_transfers import OffloadTransfers

_DIRECTION = {FORWARD: "forward", BACKWARD: "backward"}
_PHASE = {phase: number for number, phase in enumerate(PHASES)}
_NOWHERE = (-1, 0)
_FIRST, _LATER, _LAST = range(3)
"""The place of a unit among those of its stage and phase."""
_SUFFIXES = {_FIRST: ("",), _LATER: ("+", ""), _LAST: ("++", "+", "")}
"""What the names of units end with, the first that there is."""


class StageSteps:
    """Steps of all ranks.

    Parameters
    ----------
    staged : PipelineProgram
    kinds : RankClasses
    costs : OpCosts
    every_slot : bool
        Whether all slots have cells, also those whose time does not matter.

    Attributes
    ----------
    units : RankPrograms
    runs : dict of int to RunKind
        The kind of run of each step.
    edges : list of Edge
        The edges between ranks, as ``units`` numbers them.
    edge_ps : list of int
        Durations of their messages.
    stashes : OffloadTransfers
        The copies of stashes, which are numbered behind the edges.
    unit_templates : list of int
        The templates that are units of the schedule.
    """

    def __init__(
        self, staged: PipelineProgram, kinds: RankClasses, costs: OpCosts, every_slot: bool = False
    ) -> None:
        self.staged, self.kinds, self.costs = staged, kinds, costs
        self.schedule = staged.schedule
        self.rank_of = staged.schedule.rank_of
        self.micros = staged.schedule.micro_batches + 1
        self._last_phase = WEIGHT if staged.schedule.splits_backward else BACKWARD
        self.runs: dict[int, RunKind] = {}
        self._steps: list[tuple[int, ...]] = []
        self._kinds: dict[tuple[int, int, str], int] = {}
        self._kind_function: list[int] = []
        self._kind_positions: list[tuple[int, int]] = []
        slots = [
            range(len(staged.stage_kind_of(stage).slots)) if every_slot else kinds.timed(stage)
            for stage in range(len(self.rank_of))
        ]
        self._positions = [
            {slot: number * self.micros for number, slot in enumerate(stage_slots)}
            for stage_slots in slots
        ]
        sizes = [len(positions) * self.micros for positions in self._positions]
        self._base = [0, *np.cumsum(sizes).tolist()]
        self.edges = [edge for edge in staged.all_edges if self._crosses(edge)]
        self._number = {id(edge): number for number, edge in enumerate(self.edges)}
        self.edge_ps = [
            max(costs.edge_ps(edge, *(self.rank_of[end[0]] for end in (edge.source, edge.target))))
            for edge in self.edges
        ]
        self.stashes = OffloadTransfers(staged, costs, len(self.edges), self._base[-1])
        self.units = self._write()

    @staticmethod
    def of(program: Program, system: System, blocking: bool) -> StageSteps:
        """Return the steps of a pipelined program; ``blocking`` as in :func:`.simulate`."""
        staged = program.staged
        assert staged is not None
        kinds = RankClasses(program, staged, system, blocking)
        return StageSteps(staged, kinds, OpCosts(program, system))

    def number_of(self, edge: Edge) -> int:
        """Place of an edge among those between ranks."""
        return self._number[id(edge)]

    def _crosses(self, edge: Edge) -> bool:
        """Return whether an edge is a message."""
        return self.rank_of[edge.source[0]] != self.rank_of[edge.target[0]]

    def _write(self) -> RankPrograms:
        ranks = self.schedule.stages
        head, tail = self._begin(), self._end()
        begin = [0]

        def template(steps: list[StepNumbers]) -> int:
            for step in steps:
                if step.run is not None:
                    self.runs[len(self._steps)] = step.run
                self._steps.append((*step.numbers, *[0] * (5 - len(step.numbers))))
            begin.append(len(self._steps))
            return len(begin) - 2

        stage_at = stages_of(self.rank_of)
        templates: dict[tuple[int, str, int], int] = {}
        for stage in range(len(self.rank_of)):
            for phase in PHASES:
                for position in (_FIRST, _LATER, _LAST):
                    templates[stage, phase, position] = template(
                        self._phase(stage, phase, position)
                    )
        self.unit_templates = list(templates.values())
        moves = self.stashes.templates(
            self._stash, lambda rows: template([StepNumbers(numbers) for numbers in rows])
        )
        programs: list[Ints] = []
        for rank in range(ranks):
            once = self.micros - 1
            ends = [
                np.array([[template(steps), once]], np.int64) for steps in (head[rank], tail[rank])
            ]
            program = self.stashes.around(rank, self._ordered(rank, stage_at, templates), moves)
            programs += [ends[0], program, ends[1]]
        sizes = [sum(len(program) for program in programs[3 * r : 3 * r + 3]) for r in range(ranks)]
        messages = zip(self.edges, self.edge_ps, strict=True)
        rows = [[self.rank_of[edge.target[0]], duration] for edge, duration in messages]
        return RankPrograms(
            np.array(self._kind_function, np.int64),
            np.array(self._kind_positions, np.int64).ravel(),
            np.array(self._steps, np.int64).reshape(-1, 5),
            np.array(begin, np.int64),
            np.cumsum([0, *sizes]),
            np.concatenate(programs),
            np.array([*rows, *self.stashes.rows()], np.int64).reshape(-1, 2),
            self.stashes.cells,
            self.micros,
        )

    def _ordered(
        self,
        rank: int,
        stage_at: dict[tuple[int, int], int],
        templates: dict[tuple[int, str, int], int],
    ) -> Ints:
        """Return the templates and micro-batches of a rank's units; the first and last differ."""
        order: Sequence[PipelineAction] = self.schedule.orders[rank]
        if not order:
            return np.zeros((0, 2), np.int64)
        phases, micros, chunks = zip(*order, strict=True)
        phase = np.fromiter(map(_PHASE.__getitem__, phases), np.int64, len(order))
        kinds = np.array(chunks, np.int64) * len(PHASES) + phase
        known, first, number = np.unique(kinds, return_index=True, return_inverse=True)
        named = [
            (stage_at[rank, code // len(PHASES)], PHASES[code % len(PHASES)]) for code in known
        ]
        programs = np.array([templates[(*pair, _LATER)] for pair in named], np.int64)[number]
        last = len(order) - 1 - np.unique(kinds[::-1], return_index=True)[1]
        for positions, position in ((last, _LAST), (first, _FIRST)):
            programs[positions] = [templates[(*pair, position)] for pair in named]
        return np.stack((programs, np.array(micros, np.int64)), axis=1)

    def _phase(self, stage: int, phase: str, position: int) -> list[StepNumbers]:
        """Return a unit of the schedule: the first of a stage, the last, or another."""
        stage_kind, stash = self.staged.stage_kind_of(stage), self.schedule.stash
        direction = _DIRECTION.get(phase, "")
        steps = [
            self._receive(edge, False)
            for edge in self.edges
            if edge.target[0] == stage and edge.direction == direction
        ]
        if phase == FORWARD and stash:  # the weights as they are now
            steps += [self._copy(stage, (p, True), (p, False)) for p in stage_kind.params]
        names = [f"{phase}{suffix}" for suffix in _SUFFIXES[position]]
        name = next((name for name in names if self.kinds.unit(stage, name) is not None), phase)
        steps += self._run(stage, name)
        if phase == FORWARD:
            steps += self._handed(stage, stage_kind.carried)
        if phase == self._last_phase and stash:
            steps += self._run(stage, UPDATE, once=True)
            steps += self._handed(stage, stage_kind.updated)
        for edge in self.staged.edges:
            if edge.source[0] == stage and edge.direction == direction:
                steps.append(self._send(edge, False))
        return [step for step in steps if step.numbers]

    def _handed(self, stage: int, pairs: Sequence[tuple[int, int]]) -> list[StepNumbers]:
        """Return the steps that move results to the places of parameters."""
        return [self._copy(stage, (result, True), (param, True)) for param, result in pairs]

    def _cell(self, stage: int, slot: int, once: bool) -> tuple[int, int] | None:
        """Place of a slot; None where its time does not matter."""
        position = self._positions[stage].get(slot)
        if position is None:
            return None
        return self._base[stage] + position + (self.micros - 1 if once else 0), int(not once)

    def _copy(self, stage: int, source: tuple[int, bool], target: tuple[int, bool]) -> StepNumbers:
        return self._copied(self._cell(stage, *source), self._cell(stage, *target))

    def _copied(
        self, source: tuple[int, int] | None, target: tuple[int, int] | None
    ) -> StepNumbers:
        if source is None or target is None:
            return StepNumbers(())
        return StepNumbers((COPY, *source, *target))

    def _receive(self, edge: Edge, once: bool) -> StepNumbers:
        position = self._cell(*edge.target, once)
        return StepNumbers((RECV, self._number[id(edge)], *(position or _NOWHERE)))

    def _send(self, edge: Edge, once: bool) -> StepNumbers:
        """Return a message, or a value for another stage of the rank."""
        position = self._cell(*edge.source, once)
        if not self._crosses(edge):
            return self._copied(position, self._cell(*edge.target, once))
        return StepNumbers((SEND, self._number[id(edge)], *(position or _NOWHERE), SEND_STREAM))

    def _run(self, stage: int, name: str, once: bool = False) -> list[StepNumbers]:
        """Run a unit, if any; ``once``: no micro-batch has separate slots."""
        unit = self.kinds.unit(stage, name)
        if unit is None:
            return []
        key = id(self.kinds.of(stage)), self.staged.stages[stage].role, name
        if key not in self._kinds:
            self._kinds[key] = len(self._kind_function)
            self._kind_function.append(unit.number)
            for slot in (*unit.inputs, *unit.outputs):
                position = self._positions[stage].get(slot)
                single = once or slot in unit.once
                last = self.micros - 1 if single else 0
                self._kind_positions.append(
                    _NOWHERE if position is None else (position + last, int(not single))
                )
        kind = RunKind(stage, name, unit, once)
        return [StepNumbers((RUN, self._kinds[key], self._base[stage]), kind)]

    def _stash(self, stage: int) -> list[tuple[int, int]]:
        """Return the places of a stage's stash of a micro-batch, where their times matter."""
        cells = (self._cell(stage, slot, False) for slot in self.staged.stage_kind_of(stage).stash)
        return [cell for cell in cells if cell is not None]

    def _begin(self) -> list[list[StepNumbers]]:
        """Return the steps of ranks before the first unit."""
        steps: list[list[StepNumbers]] = [[] for _ in range(self.schedule.stages)]
        for stage, rank in enumerate(self.rank_of):
            steps[rank] += self._run(stage, BEGIN, once=True)
        return steps

    def _end(self) -> list[list[StepNumbers]]:
        """Return the steps of ranks before the first unit."""
        steps: list[list[StepNumbers]] = [[] for _ in range(self.schedule.stages)]

        def run(stage: int, name: str) -> None:
            steps[self.rank_of[stage]].extend(self._run(stage, name, once=True))

        def copy(source: tuple[int, int], target: tuple[int, int]) -> None:
            cells = (self._cell(*end, True) for end in (source, target))
            steps[self.rank_of[target[0]]].append(self._copied(*cells))

        for number in range(len(self.staged.sums)):
            self.staged.add_up(number, run, copy, functools.partial(self._move, steps))
        for stage, rank in enumerate(self.rank_of):
            steps[rank] += self._run(stage, END, once=True)
        return [[step for step in rank_steps if step.numbers] for rank_steps in steps]

    def _move(self, steps: list[list[StepNumbers]], edge: Edge) -> None:
        steps[self.rank_of[edge.source[0]]].append(self._send(edge, True))
        if self._crosses(edge):
            steps[self.rank_of[edge.target[0]]].append(self._receive(edge, True))
