# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the dependencies of ops and messages of a pipeline rank."""

from __future__ import annotations

import re

from tvm_distir.core.plan import FETCH, FORWARD, STORE, absences, stages_of
from tvm_distir.performance.program.pipeline_program import END, Edge, PipelineProgram
from tvm_distir.performance.simulation.dependencies import Dependencies, Places
from tvm_distir.performance.traces.records import Task

from .runs import ActionRuns, Copies, EdgeMessages, StageRuns
from .stash_transfers import StashTransfer

_TAIL = re.compile(rf"(part|add):\d+|{END}")
"""Units behind those of the schedule."""


class RankDependencies:
    """The tasks of a rank, unit by unit.

    Parameters
    ----------
    staged : PipelineProgram
    rank : int
    ran : StageRuns
    runs : list of ActionRuns
        The runs of the rank.
    sent, received : list of EdgeMessages
    copied : list of Copies

    Attributes
    ----------
    tasks : list of Task
    """

    def __init__(
        self, staged: PipelineProgram, rank: int, ran: StageRuns, runs: list[ActionRuns],
        sent: list[EdgeMessages], received: list[EdgeMessages], copied: list[Copies],
    ) -> None:  # fmt: skip
        self._staged, self._rank = staged, rank
        self._rank_of = staged.schedule.rank_of
        self._produced: dict[tuple[int, int, int], Places] = {}
        self._awaited: set[tuple[int, int, int, str]] = set()
        self._walk = Dependencies(ran.kinds.lowering, rank)
        self._tags = {id(edge): number for number, edge in enumerate(ran.steps.edges)}
        self._sent = {self._key(messages.edge, False): messages for messages in sent}
        self._received = {self._key(messages.edge, True): messages for messages in received}
        edges = [*staged.edges, *(edge for stage_sum in staged.sums for edge in stage_sum.edges)]
        inside = (e for e in edges if self._rank_of[e.source[0]] == self._rank_of[e.target[0]])
        self._handed: dict[tuple[int, int], list[Edge]] = {}
        for edge in inside:
            self._handed.setdefault(edge.source, []).append(edge)
        self._tail = {(run.stage, run.name): run for run in runs if _TAIL.fullmatch(run.name)}
        units = [run for run in runs if (run.stage, run.name) not in self._tail]
        steps = [(int(place), unit, k) for unit in units for k, place in enumerate(unit.order)]
        moves = _Moves(staged, rank, copied, self._walk)
        for _, run, k in sorted(steps, key=lambda step: step[0]):
            moves.before(run, int(run.micros[k]))
            self._unit(run, int(run.micros[k]))
        for number in range(len(staged.sums)):
            self._sum(number)
        for run in self._tail.values():
            if run.name == END:
                self._unit(run, -1)
        self.tasks: list[Task] = self._walk.tasks

    @staticmethod
    def _key(edge: Edge, arrives: bool) -> tuple[int, int, str]:
        end = edge.target if arrives else edge.source
        return (*end, edge.direction)

    def _unit(self, run: ActionRuns, micro: int) -> None:
        """Add a unit, whose operands and results may be messages of other ranks."""
        stage, unit = run.stage, run.unit
        late = "sum" if run.name.startswith("add:") else "total"
        args = [
            self._read(stage, slot, -1 if slot in unit.once else micro, late)
            for slot in unit.inputs
        ]
        results = self._walk.call(unit.function, args)
        for slot, places in zip(unit.outputs, results, strict=True):
            self._write(stage, slot, -1 if slot in unit.once else micro, places)
        if run.name.rstrip("+") == FORWARD:
            for read, target in self._staged.role_of(stage).carried:
                self._produced[stage, read, -1] = self._produced.get((stage, target, -1), ())

    def _sum(self, number: int) -> None:
        """Add a sum over stages: each adds its term, the last broadcasts the total."""
        stage_sum = self._staged.sums[number]
        stages = [stage for stage in stage_sum.stages if self._rank_of[stage] == self._rank]
        places = {stage: self._staged.sums_of(stage).index(number) for stage in stages}
        pairs = {stage: self._staged.role_of(stage).sums[place] for stage, place in places.items()}
        first = {e.target[0] for e in stage_sum.edges if e.direction == "sum"}
        for stage in stages:
            for word in ("part", "add"):
                unit = self._tail.get((stage, f"{word}:{places[stage]}"))
                if unit is not None:
                    self._unit(unit, -1)
            if stage not in first:  # passes on its part
                part, total = pairs[stage]
                self._write(stage, total, -1, self._produced.get((stage, part, -1), ()))
        informed = {e.target[0] for e in stage_sum.edges if e.direction == "total"}
        known = [stage for stage in stages if stage in informed or stage == stage_sum.stages[-1]]
        for stage in stages if known else ():
            total_places = self._read(known[-1], pairs[known[-1]][1], -1, "total")
            self._produced[stage, pairs[stage][1], -1] = total_places

    def _read(self, stage: int, slot: int, micro: int, late: str) -> Places:
        """Return the tasks that produce a slot; its message is received at the first read.

        ``late``: which message of a sum over stages the reader means.
        """
        key = stage, slot, micro
        for direction in ("forward", "backward", late):
            messages = self._received.get((stage, slot, direction))
            if (
                messages is not None
                and micro in messages.micros
                and (*key, direction) not in self._awaited
            ):
                self._awaited.add((*key, direction))
                self._produced[key] = self._message(messages, micro, "recv", ())
        return self._produced.get(key, ())

    def _write(self, stage: int, slot: int, micro: int, places: Places) -> None:
        self._produced[stage, slot, micro] = places
        for direction in ("forward", "backward", "sum", "total"):
            messages = self._sent.get((stage, slot, direction))
            if messages is not None and micro in messages.micros:
                self._message(messages, micro, "send", places)
        for edge in self._handed.get((stage, slot), ()):
            self._produced[(*edge.target, micro)] = places

    def _message(self, messages: EdgeMessages, micro: int, kind: str, data: Places) -> Places:
        edge, arrives = messages.edge, kind == "recv"
        other = self._rank_of[(edge.source if arrives else edge.target)[0]]
        duration = int(messages.end[0] - messages.start[0])
        name = f"{edge.direction} {micro}" if micro >= 0 else edge.direction
        return self._walk.message(
            name, kind, data, duration, edge.wire_bytes[arrives], (self._rank, other),
            self._tags[id(edge)],
        )  # fmt: skip


class _Moves:
    """Copies of stashes to host memory and back, between the units of a rank."""

    def __init__(
        self, staged: PipelineProgram, rank: int, copied: list[Copies], walk: Dependencies
    ) -> None:
        self._walk, schedule = walk, staged.schedule
        moves = {(copies.move.stage, copies.move.kind): copies.move for copies in copied}
        stage_at = stages_of(schedule.rank_of)
        self._place = {
            (stage_at[rank, unit.chunk], unit.phase, unit.micro): place
            for place, unit in enumerate(schedule.orders[rank] if moves else ())
        }
        self._begun: dict[tuple[int, str, int], Places] = {}
        self._todo: list[tuple[int, bool, StashTransfer, int]] = []
        for absence in absences(schedule, rank) if moves else ():
            for place, kind in ((absence.stored, STORE), (absence.fetched, FETCH)):
                move = moves.get((absence.stage, kind))
                if move is not None:
                    self._todo.append((place, True, move, absence.micro))
                    self._todo.append((place + 1, False, move, absence.micro))
        self._todo.sort(key=lambda entry: entry[:2], reverse=True)

    def before(self, run: ActionRuns, micro: int) -> None:
        """End and begin the copies in front of a unit of the schedule."""
        place = self._place.get((run.stage, run.name.rstrip("+"), micro), -1)
        while self._todo and self._todo[-1][0] <= place:
            _, begins, move, which = self._todo.pop()
            key = move.stage, move.kind, which
            if begins:
                self._begun[key] = self._walk.copy(move.kind, move.spent_ps, move.bytes)
            else:
                self._walk.hold(self._begun[key])
