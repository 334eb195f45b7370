# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the dependencies of ops: operands, and predecessors on their stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm_distir.performance.event_loop.function_summaries import AFTER, APART, HOLDS
from tvm_distir.performance.traces.records import Task

from .entry_tasks import EntryTasks
from .lowering import Lowering, flags_of
from .op_costs import COMM, COMPUTE, SEND, OpRow

TaskNumbers = tuple[int, ...]
"""Tasks, by their places, behind which a value is there; none: it is there at once."""


class Dependencies:
    """Tasks in order of issue.

    Parameters
    ----------
    lowering : Lowering
    mesh : int, optional
        The mesh on which collectives run, where ops do not name it.

    Attributes
    ----------
    tasks : list of Task
    """

    def __init__(self, lowering: Lowering, mesh: int | None = None) -> None:
        self.tasks: list[Task] = []
        self._lowering, self._mesh = lowering, mesh
        self._last: dict[int | str, TaskNumbers] = {}
        self._held: TaskNumbers = ()

    def entry(self, entry: EntryTasks) -> None:
        """Add the tasks of an entry."""
        tasks_of: dict[int, TaskNumbers] = {-1: ()}
        for piece in entry.pieces:
            args = [tasks_of[value] for value in piece.ins]
            if piece.function >= 0:
                numbers = self.call(piece.function, args)
            else:
                numbers = [self.op(self._lowering.rows[piece.row], args)] * len(piece.outs)
            tasks_of.update(zip(piece.outs, numbers, strict=True))

    def call(self, function: int, args: Sequence[TaskNumbers]) -> list[TaskNumbers]:
        """Add the ops of a call and return the dependences of its results."""
        fn = self._lowering.functions[function]
        tasks_of: dict[int, TaskNumbers] = {-1: (), **dict(enumerate(args))}
        for step in fn.steps:
            ins = [tasks_of.get(value, ()) for value in step.ins]
            if step.callee >= 0:
                numbers = self.call(step.callee, ins)
            else:
                numbers = [self.op(self._lowering.rows[step.row], ins)] * len(step.outs)
            tasks_of.update(zip(step.outs, numbers, strict=True))
        return [tasks_of.get(value, ()) for value in fn.results]

    def op(self, row: OpRow, args: Iterable[TaskNumbers]) -> TaskNumbers:
        """Add an op; a collective that a wait waits for delays the compute ops after it."""
        op, data = row.op, _joined(args)
        if op.kind == "wait":
            self._held = _joined((self._held, data))
            return data
        if op.kind == "transfer":
            return self.message(
                op.name, op.collective, data, row.duration_ps, op.wire_bytes,
                (op.mesh, op.peer_mesh), op.tag,
            )  # fmt: skip
        mesh = op.mesh if self._mesh is None else self._mesh
        if row.stream == COMPUTE:
            size = op.bytes_read + op.bytes_written
            after, self._held = _joined((self._last.get(COMPUTE, ()), self._held)), ()
            task = Task(op.name, "compute", data, after, row.duration_ps, op.flops, size, mesh)
            self._last[COMPUTE] = self._add(task)
            return self._last[COMPUTE]
        flags = flags_of(row, self._lowering.blocking)
        issued = self._last.get(COMPUTE, ()) if flags & AFTER else ()
        queue = () if flags & APART else self._last.get(row.stream, ())
        after, size = _joined((queue, issued)), _operand_bytes(row)
        number = self._add(
            Task(op.name, op.collective, data, after, row.duration_ps, 0, size, mesh, op.mesh_axes)
        )
        if not flags & APART:
            self._last[row.stream] = number
        if flags & HOLDS:
            self._held = _joined((self._held, number))
        return number

    def message(
        self, name: str, kind: str, data: TaskNumbers, duration_ps: int, size: int,
        ends: tuple[int, int], tag: int,
    ) -> TaskNumbers:  # fmt: skip
        """Add an end of a message: the mesh here, and that there."""
        after = self._last.get(SEND, ()) if kind == "send" else ()
        mesh, peer = ends
        number = self._add(Task(name, kind, data, after, duration_ps, 0, size, mesh, (), peer, tag))
        if kind == "send":
            self._last[SEND] = number
        return number

    def copy(self, kind: str, duration_ps: int, size: int) -> TaskNumbers:
        """Add a copy to the host's memory or back: it begins when the compute before it is over."""
        after = _joined((self._last.get(kind, ()), self._last.get(COMPUTE, ())))
        self._last[kind] = self._add(Task(kind, kind, (), after, duration_ps, bytes=size))
        return self._last[kind]

    def hold(self, numbers: TaskNumbers) -> None:
        """Let compute and collectives behind this wait for tasks."""
        self._held = _joined((self._held, numbers))
        self._last[COMM] = _joined((self._last.get(COMM, ()), numbers))

    def _add(self, task: Task) -> TaskNumbers:
        inside = set(task.data)
        self.tasks.append(task._replace(after=tuple(k for k in task.after if k not in inside)))
        return (len(self.tasks) - 1,)


def _joined(parts: Iterable[TaskNumbers]) -> TaskNumbers:
    return tuple(sorted({number for part in parts for number in part}))


def _operand_bytes(row: OpRow) -> int:
    """Return the bytes of a single device's operand of a collective."""
    op = row.op
    if op.collective == "all_gather":
        return op.payload_bytes // max(op.group_size, 1)
    return op.payload_bytes * (op.group_size if op.collective == "reduce_scatter" else 1)
