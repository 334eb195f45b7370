# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sum up what the devices of a pipeline rank did, from its units and messages."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import numpy as np

from tvm_distir.performance.memory.ranks import RankMemory
from tvm_distir.performance.memory.timeline import curve
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.staged import PipelineProgram
from tvm_distir.performance.simulation.costs import OpCosts, OpRow
from tvm_distir.performance.simulation.device_results import DeviceGroupResult, Held, Tables
from tvm_distir.performance.simulation.function_table import FunctionTables
from tvm_distir.performance.simulation.lowering import Lowering
from tvm_distir.performance.simulation.statistics import (
    Traffic,
    Work,
    add_moves,
    add_traffic,
    constant_bytes,
    is_moved,
    value_bytes,
)
from tvm_distir.performance.simulation.timeline import all_seconds, op_times, total_flops

from .lanes import StageTimeline, function_times
from .runs import StageRuns


class CallSums:
    """Sums over one call of each function: ranks share functions, summed up once.

    Parameters
    ----------
    lowering : Lowering
    """

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self._flops: dict[int, int] = {}
        self._moves: dict[int, list[tuple[OpRow, int]]] = {}

    def flops(self, function: int) -> int:
        """Return the arithmetic operations."""
        if function not in self._flops:
            rows, counts = self._rows(function)
            self._flops[function] = total_flops(rows, counts)
        return self._flops[function]

    def moves(self, function: int) -> list[tuple[OpRow, int]]:
        """Return the collectives and transfers, and how often each runs."""
        if function not in self._moves:
            rows = zip(*self._rows(function), strict=True)
            self._moves[function] = [row for row in rows if is_moved(row[0])]
        return self._moves[function]

    def _rows(self, function: int) -> tuple[list[OpRow], list[int]]:
        counts = self.lowering.counts(function)
        ran = np.flatnonzero(counts)
        return [self.lowering.rows[row] for row in ran.tolist()], counts[ran].tolist()


class RankAccount:
    """Summary of a pipeline rank.

    Parameters
    ----------
    program : Program
    staged : PipelineProgram
    rank : int
    ran : StageRuns
    sums : CallSums
    memory : callable giving RankMemory
    """

    def __init__(
        self,
        program: Program,
        staged: PipelineProgram,
        rank: int,
        ran: StageRuns,
        sums: CallSums,
        memory: Callable[[], RankMemory],
    ) -> None:
        self.program, self.staged, self.rank, self.ran = program, staged, rank, ran
        self.sums, self.memory = sums, memory
        self.mesh = program.meshes[rank]
        self.stages = [k for k, r in enumerate(staged.schedule.rank_of) if r == rank]
        self.timeline = StageTimeline.of(staged, rank, ran)
        self.often: Counter[int] = Counter()
        for run in self.timeline.runs:
            self.often[run.unit.function] += run.micros.size

    def run(self, finish: int, tables: FunctionTables) -> tuple[DeviceGroupResult, Work]:
        """Return the rank's lane and the work of its devices; ``finish`` ends the step."""
        timeline = self.timeline
        root = "main" if len(self.program.meshes) == 1 else f"main_mesh{self.rank}"

        @functools.cache
        def held() -> Held:
            memory = self.memory()
            course = _curve(memory, finish, timeline)
            return Held(course, memory.account, self._weights())

        @functools.cache
        def shown() -> Tables:
            return op_times(*self._rows()), function_times(root, timeline.runs, tables)

        lane = DeviceGroupResult(self.mesh.name, self.mesh.device_ids, timeline, held, shown)
        busy = self.ran.busy(self.rank, timeline.talking())
        flops = sum(count * self.sums.flops(function) for function, count in self.often.items())
        return lane, Work(*busy, finish, flops)

    def traffic(self, costs: OpCosts) -> Traffic:
        """Return the rank's collectives, received messages and copies to and from the host."""
        result: Traffic = {}
        for function, often in self.often.items():
            moves = [(row, often * count) for row, count in self.sums.moves(function)]
            add_moves(result, self.program, moves, self.mesh)
        rank_of = self.staged.schedule.rank_of
        for messages in self.ran.messages:
            edge, count = messages.edge, int(messages.start.size)
            if rank_of[edge.target[0]] != self.rank or not count:
                continue
            peer = rank_of[edge.source[0]]
            ends = f"{self.program.meshes[peer].name}->{self.mesh.name}"
            _, spent = costs.edge_ps(edge, peer, self.rank)
            add_traffic(
                result, (self.mesh.name, "send", ends, len(self.mesh.device_ids)), count,
                (edge.bytes[1], edge.part_bytes[1], spent),
            )  # fmt: skip
            late = int((messages.end - messages.start).sum()) - count * self.ran.edge_ps(edge)
            result[self.mesh.name, "send", ends, len(self.mesh.device_ids)][3] += late
        for copies in self.timeline.copied:
            move, count = copies.move, int(copies.start.size)
            add_traffic(
                result, (self.mesh.name, move.kind, "host", len(self.mesh.device_ids)), count,
                (move.bytes, move.bytes, move.spent_ps),
            )  # fmt: skip
        return result

    def _rows(self) -> tuple[list[OpRow], list[int]]:
        """Return all ops that the rank runs, and how often."""
        lowering = self.ran.kinds.lowering
        counts = np.zeros(len(lowering.rows), np.int64)
        for function, often in self.often.items():
            counts += often * lowering.counts(function)
        ran = np.flatnonzero(counts)
        return [lowering.rows[row] for row in ran.tolist()], counts[ran].tolist()

    def _weights(self) -> int:
        """Return the bytes of weights, states and constants."""
        _, weights = value_bytes(value for _, _, value in self.staged.inputs(self.rank))
        roots = {p.function for k in self.stages for p in self.staged.role_of(k).phases}
        return weights + constant_bytes(self.program, sorted(roots))


def _curve(
    memory: RankMemory, finish: int, timeline: StageTimeline
) -> tuple[tuple[float, int], ...]:
    """Return the live memory over time, a unit at a time."""
    starts = {}
    for run, _, begin, _ in timeline.parts:
        starts[run.stage, run.name] = iter(begin.tolist())
    issued = [
        next(starts.get((event.stage, event.name), iter(())), finish) for event in memory.events
    ]
    when, live = curve(
        memory.resident_bytes, np.array(issued, np.int64), memory.during, finish,
        int(memory.after[-1]),
    )  # fmt: skip
    return tuple(zip(all_seconds(when), live.tolist(), strict=True))
