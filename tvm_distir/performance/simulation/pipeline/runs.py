# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the ranks of a pipeline and read off the times of units and messages."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_distir.performance.event_loop.activities import Loads
from tvm_distir.performance.event_loop.contention import run_contended
from tvm_distir.performance.event_loop.function_summaries import NEVER, STREAM_PORTS, Ints
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.pipeline_program import Edge
from tvm_distir.performance.simulation.module_times import ModuleNames
from tvm_distir.performance.simulation.op_costs import COMPUTE
from tvm_distir.performance.simulation.op_records import op_kinds
from tvm_distir.performance.traces.records import RecordKind
from tvm_distir.support import SimulationError, memoized

from .rank_arrays import StageSteps
from .rank_classes import RankUnit
from .stash_transfers import StashTransfer


@dataclass(frozen=True)
class ActionRuns:
    """All runs of a unit of a stage on its rank.

    Attributes
    ----------
    unit : RankUnit
    stage : int
    name : str
    micros : int64 array (runs,)
        Micro-batch of each run; -1 for what is done once.
    times : int64 array (runs, ports)
        The times of the ports.
    order : int64 array (runs,)
        Places among all runs of the rank.
    """

    unit: RankUnit
    stage: int
    name: str
    micros: Ints
    times: Ints
    order: Ints


@dataclass(frozen=True)
class EdgeMessages:
    """The messages of an edge: their micro-batches (-1: once), starts and ends, in order."""

    edge: Edge
    micros: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True)
class Copies:
    """The copies of a stage's stashes in a single direction, as :class:`EdgeMessages`."""

    move: StashTransfer
    micros: Ints
    start: Ints
    end: Ints


class StageRuns:
    """Runs of all ranks.

    Parameters
    ----------
    steps : StageSteps
    meshes : sequence of Mesh
        The meshes of the ranks.
    modules : ModuleNames
        The modules of ops.
    loads : Loads, optional
        The loads of links under contention; None: all run at full speed.

    Attributes
    ----------
    messages : list of EdgeMessages
        The messages of each edge between ranks.
    copies : list of Copies
        The copies to the memory of the host, and back.
    finish : int
        The time at which the last stream is free, and the last message has arrived.

    Raises
    ------
    SimulationError
        DIST0720 where ranks wait for each other, DIST0721 for times that do not fit.
    """

    def __init__(
        self,
        steps: StageSteps,
        meshes: Sequence[Mesh],
        modules: ModuleNames,
        loads: Loads | None = None,
    ) -> None:
        self.kinds, self.steps, self.meshes = steps.kinds, steps, meshes
        self.modules = modules
        kinds, units = steps.kinds, steps.units
        ran = kinds.maps.run(units)
        self._check(ran.position)
        ended = np.where(ran.sent >= 0, ran.sent + np.array(units.edges[:, 1:], np.int64), -1)
        self._met = None
        if loads is not None:
            self._met = run_contended(kinds.maps, units, loads)
            ran, ended = self._met.ran, self._met.ended
        self.times = ran.times
        self.finish = int(ran.finish.max(initial=0))
        self.program, self.step, self.begin = units.runs()
        known = {n: len(kinds.maps.ports(n)) + STREAM_PORTS for n in units.kind_function.tolist()}
        ports = np.array([known[n] for n in units.kind_function.tolist()], np.int64)
        kind = units.steps[self.step, 1]
        self._functions = units.kind_function[kind]
        self._at = np.concatenate(([0], np.cumsum(ports[kind])))
        self.messages = []
        count = len(steps.edges)
        for edge, *times in zip(steps.edges, ran.sent[:count], ended[:count], strict=True):
            self.messages.append(EdgeMessages(edge, *self._sent(*times)))
        moves = zip(steps.stashes.moves, ran.sent[count:], ended[count:], strict=True)
        self.copies = [Copies(move, *self._sent(*times)) for move, *times in moves]

    @functools.cached_property
    def every_step(self) -> StageSteps:
        """Return the steps of all ranks, with a cell for each slot."""
        steps = self.steps
        return StageSteps(steps.staged, steps.kinds, steps.costs, every_slot=True)

    def _sent(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the micro-batches, starts and ends of transfers from values by micro-batch."""
        micros = np.flatnonzero(starts >= 0)
        micros = micros[np.argsort(starts[micros], kind="stable")]
        once = np.where(micros == self.steps.units.micros - 1, -1, micros)
        return once, starts[micros], ends[micros]

    def _check(self, position: Ints) -> None:
        units, schedule = self.steps.units, self.steps.schedule
        behind = position < np.diff(units.program_begin)
        stuck = np.flatnonzero(behind).tolist()
        if stuck:
            first = stuck[0]
            order = schedule.orders[first]
            begin = int(units.program_begin[first])
            ended = units.programs[begin : begin + int(position[first]), 0]
            at = int(np.isin(ended, self.steps.unit_templates).sum())
            subject = list(order[at]) if 0 <= at < len(order) else "a sum over stages"
            problem = f"the ranks {stuck} cannot continue: rank {first} waits for {subject}"
            remedy = "Order units such that each follows the units that it depends on."
            raise SimulationError("DIST0720", problem, location="schedule", remedy=remedy)

    def of(self, rank: int) -> Iterator[ActionRuns]:
        """Yield the runs of a rank, by stage and unit, in the order of the first of each."""
        units = self.steps.units
        steps = slice(*self.begin[rank : rank + 2].tolist())
        at, step = self._at[:-1][steps], self.step[steps]
        micro = units.programs[self.program[steps], 1]
        keys, of_step = self._units_run
        number = of_step[step]
        rows = np.argsort(number, kind="stable")
        ends = np.flatnonzero(np.diff(number[rows], append=-1)) + 1
        runs = []
        for first, last in zip([0, *ends.tolist()], ends.tolist(), strict=False):
            order = rows[first:last]
            kind = self.steps.runs[keys[int(number[order[0]])]]
            ports = STREAM_PORTS + len(self.kinds.maps.ports(kind.unit.number))
            times = self.times[at[order][:, None] + np.arange(ports)]
            once = kind.once | (micro[order] == units.micros - 1)
            micros = np.where(once, -1, micro[order])
            runs.append(ActionRuns(kind.unit, kind.stage, kind.name, micros, times, order))
        yield from sorted(runs, key=lambda run: int(run.order[0]))

    @functools.cached_property
    def _units_run(self) -> tuple[list[int], Ints]:
        """Return a step that runs each unit of a stage and, by step, the unit's number."""
        numbers: dict[tuple[int, str], int] = {}
        steps: list[int] = []
        of_step = np.full(len(self.steps.units.steps), -1, np.int64)
        for step, kind in self.steps.runs.items():
            key = kind.stage, kind.name
            if key not in numbers:
                numbers[key] = len(steps)
                steps.append(step)
            of_step[step] = numbers[key]
        return steps, of_step

    def busy(self, rank: int, communication: Ints) -> tuple[int, int, int]:
        """Return the time of computing, of communicating (also ``communication``), and of both."""
        first, last = self.begin[rank : rank + 2].tolist()
        none = np.zeros(0, np.int64)
        slowed = np.zeros(last - first, bool)
        if self._met is not None:
            slowed = np.diff(self._met.clock_begin[first : last + 1]) > 0
        if not slowed.any():
            times = self.times[self._at[first] : self._at[last]]
            return self.kinds.maps.busy(self._functions[first:last], times, none, communication)
        parts: list[list[Ints]] = [[none], [none, communication]]
        for run in self.of(rank):
            function = run.unit.function
            start, end = self.op_times(run)
            both = np.stack((start, end), axis=2)
            talks = self.kinds.lowering.streams(function) != COMPUTE
            parts[0].append(both[:, ~talks].ravel())
            parts[1].append(both[:, talks].ravel())
        computing, communicating = (np.concatenate(intervals) for intervals in parts)
        return self.kinds.maps.busy(none, none, computing, communicating)

    def edge_ps(self, edge: Edge) -> int:
        """Return the duration of an edge's messages where they meet nothing."""
        return self.steps.edge_ps[self.steps.number_of(edge)]

    def op_times(self, runs: ActionRuns) -> tuple[Ints, Ints]:
        """Return the starts and ends of the ops of runs, (runs, ops) each."""
        start = self.kinds.maps.expand(runs.unit.number, runs.times)
        end = start + self.kinds.lowering.durations(runs.unit.function)
        return self._real(runs, start), self._real(runs, end)

    def _real(self, runs: ActionRuns, times: Ints) -> Ints:
        """Convert times of runs (runs, n) at full speed to times under contention."""
        if self._met is None:
            return times
        numbers = (self.begin[self.steps.rank_of[runs.stage]] + runs.order).tolist()
        rows = [self._met.real(n, rank_times) for n, rank_times in zip(numbers, times, strict=True)]
        return np.array(rows, np.int64).reshape(times.shape)

    @memoized
    def ops(self, function: int) -> list[RecordKind]:
        """Return the records of a unit's ops for traces."""
        return op_kinds(self.modules, self.kinds.lowering.scoped(function, ""))

    def spans(self, runs: ActionRuns) -> Ints:
        """Return the spans of runs on the compute stream, or of all ops without it, (runs, 2)."""
        number = runs.unit.number
        spans = self.kinds.maps.spans(number, runs.times)
        if spans.size and spans[0, 0] == NEVER and self.kinds.maps.tasks(number):
            start, end = self.op_times(runs)
            return np.stack((start.min(axis=1), end.max(axis=1)), axis=1)
        return self._real(runs, spans)
