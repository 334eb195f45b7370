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

Places = tuple[int, ...]
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
        self._last: dict[int | str, Places] = {}
        self._held: Places = ()

    def entry(self, entry: EntryTasks) -> None:
        """Add the tasks of an entry."""
        places_of: dict[int, Places] = {-1: ()}
        for piece in entry.pieces:
            args = [places_of[value] for value in piece.ins]
            if piece.function >= 0:
                places = self.call(piece.function, args)
            else:
                places = [self.op(self._lowering.rows[piece.row], args)] * len(piece.outs)
            places_of.update(zip(piece.outs, places, strict=True))

    def call(self, function: int, args: Sequence[Places]) -> list[Places]:
        """Add the ops of a call and return the dependences of its results."""
        fn = self._lowering.functions[function]
        places_of: dict[int, Places] = {-1: (), **dict(enumerate(args))}
        for step in fn.steps:
            ins = [places_of.get(value, ()) for value in step.ins]
            if step.callee >= 0:
                places = self.call(step.callee, ins)
            else:
                places = [self.op(self._lowering.rows[step.row], ins)] * len(step.outs)
            places_of.update(zip(step.outs, places, strict=True))
        return [places_of.get(value, ()) for value in fn.results]

    def op(self, row: OpRow, args: Iterable[Places]) -> Places:
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
        place = self._add(
            Task(op.name, op.collective, data, after, row.duration_ps, 0, size, mesh, op.mesh_axes)
        )
        if not flags & APART:
            self._last[row.stream] = place
        if flags & HOLDS:
            self._held = _joined((self._held, place))
        return place

    def message(
        self, name: str, kind: str, data: Places, duration_ps: int, size: int,
        ends: tuple[int, int], tag: int,
    ) -> Places:  # fmt: skip
        """Add an end of a message: the mesh here, and that there."""
        after = self._last.get(SEND, ()) if kind == "send" else ()
        mesh, peer = ends
        place = self._add(Task(name, kind, data, after, duration_ps, 0, size, mesh, (), peer, tag))
        if kind == "send":
            self._last[SEND] = place
        return place

    def copy(self, kind: str, duration_ps: int, size: int) -> Places:
        """Add a copy to the host's memory or back: it begins when the compute before it is over."""
        after = _joined((self._last.get(kind, ()), self._last.get(COMPUTE, ())))
        self._last[kind] = self._add(Task(kind, kind, (), after, duration_ps, bytes=size))
        return self._last[kind]

    def hold(self, places: Places) -> None:
        """Let compute and collectives behind this wait for tasks."""
        self._held = _joined((self._held, places))
        self._last[COMM] = _joined((self._last.get(COMM, ()), places))

    def _add(self, task: Task) -> Places:
        inside = set(task.data)
        self.tasks.append(task._replace(after=tuple(k for k in task.after if k not in inside)))
        return (len(self.tasks) - 1,)


def _joined(parts: Iterable[Places]) -> Places:
    return tuple(sorted({place for part in parts for place in part}))


def _operand_bytes(row: OpRow) -> int:
    """Return the bytes of a single device's operand of a collective."""
    op = row.op
    if op.collective == "all_gather":
        return op.payload_bytes // max(op.group_size, 1)
    return op.payload_bytes * (op.group_size if op.collective == "reduce_scatter" else 1)
