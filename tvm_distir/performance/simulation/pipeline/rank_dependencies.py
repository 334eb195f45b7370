# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the dependencies of ops and messages of a pipeline rank."""

from __future__ import annotations

from tvm_distir.performance.event_loop.function_summaries import COMM_PORT, COMPUTE_PORT
from tvm_distir.performance.event_loop.rank_walk import RankWalk
from tvm_distir.performance.simulation.op_dependencies import Dependencies, TaskNumbers
from tvm_distir.performance.traces.records import Task

from .runs import StageRuns


class RankDependencies(RankWalk[TaskNumbers]):
    """The tasks of a rank, whose program is walked with the tasks that make each value.

    Parameters
    ----------
    ran : StageRuns
    rank : int

    Attributes
    ----------
    tasks : list of Task
    """

    def __init__(self, ran: StageRuns, rank: int) -> None:
        self._ran, self._steps = ran, ran.every_step
        super().__init__(ran.kinds.maps, self._steps.units, (), (), every_input=True)
        self._issued = Dependencies(ran.kinds.lowering, rank)
        self.advance([rank])
        self.tasks: list[Task] = self._issued.tasks

    def run(
        self, rank: int, step: int, micro: int, streams: list[TaskNumbers], ports: list[TaskNumbers]
    ) -> tuple[list[TaskNumbers], list[TaskNumbers]]:
        """Add the ops of a unit."""
        results = self._issued.call(self._steps.runs[step].unit.function, ports)
        stored = self.stored[int(self.units.steps[step, 1])]
        return streams, [results[result] for result in stored]

    def send(
        self, rank: int, edge: int, micro: int, stream: TaskNumbers, value: TaskNumbers
    ) -> tuple[TaskNumbers, TaskNumbers]:
        """Add a message that leaves, or a copy of a stash."""
        number = edge - len(self._steps.edges)
        if number < 0:
            return stream, self._message(rank, edge, micro, "send", value)
        move = self._steps.stashes.moves[number]
        return stream, self._issued.copy(move.kind, move.spent_ps, move.bytes)

    def receive(self, rank: int, edge: int, micro: int) -> TaskNumbers | None:
        """Add a message that arrives; a copy has been added."""
        if edge < len(self._steps.edges):
            return self._message(rank, edge, micro, "recv", ())
        return super().receive(rank, edge, micro)

    def join(self, rank: int, stream: int, first: TaskNumbers, second: TaskNumbers) -> TaskNumbers:
        """Let ops wait for the end of a copy."""
        if stream in (COMPUTE_PORT, COMM_PORT):
            self._issued.hold(second)
        return first

    def _message(
        self, rank: int, number: int, micro: int, kind: str, data: TaskNumbers
    ) -> TaskNumbers:
        messages, arrives = self._ran.messages[number], kind == "recv"
        edge = messages.edge
        other = self._steps.rank_of[(edge.source if arrives else edge.target)[0]]
        once = micro == self.units.micros - 1
        name = edge.direction if once else f"{edge.direction} {micro}"
        duration = int(messages.end[0] - messages.start[0])
        return self._issued.message(
            name, kind, data, duration, edge.wire_bytes[arrives], (rank, other), number
        )
