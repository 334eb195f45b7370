# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Turn an entry into tasks: ops of inlined functions, calls of summarized ones.

A call of a summarized function is not unrolled: its max-plus map says how much later than each port
its streams and results are free, and each of these differences is a task that waits for the port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tvm_distir.performance.event_loop.function_summaries import (
    AFTER,
    APART,
    AT_HAND,
    COMM_PORT,
    COMPUTE_PORT,
    FREE,
    HOLDS,
    HOST_PORT,
    IS_FREE,
    NEVER,
    SETTLED,
    STREAM_PORTS,
    SYNC,
    FunctionSummaries,
    Ints,
)

from .lowering import Lowering, flags_of
from .op_costs import COMM, COMPUTE, SEND

Waits = tuple[int, ...]
"""Tasks of which the last ends when something is there; none: it is there at once."""

_SEND_PORT = STREAM_PORTS
_PORT = {COMPUTE: COMPUTE_PORT, COMM: COMM_PORT, SEND: _SEND_PORT}


class Piece(NamedTuple):
    """Piece of an entry: an op, or a call of a summarized function.

    Attributes
    ----------
    row : int
        The row of an op; -1 of a call.
    function : int
        The function of a call; -1 of an op.
    name : str
        The name of the binding.
    scope : str
        The calls around it, ``main/layer_3``: names of bindings; empty around an entry.
    ins, outs : list of int
        Values.
    """

    row: int
    function: int
    name: str
    scope: str
    ins: list[int]
    outs: list[int]


@dataclass
class EntryTasks:
    """Tasks of an entry.

    Attributes
    ----------
    pieces : list of Piece
        The pieces, in order of issue.
    row : int64 array (tasks,)
        The row of the op that the task is, -1 for part of a call.
    duration : int64 array (tasks,)
    waits : int64 array (n, 2)
        Tasks, and tasks that they wait for.
    task : list of int
        The task of each op; of a call its first task, which may be the next piece's.
    ports : list of list of Waits
        The waits for the ports of each call; empty of an op.
    """

    pieces: list[Piece]
    row: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    duration: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    waits: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    task: list[int] = field(default_factory=list)
    ports: list[list[Waits]] = field(default_factory=list)


def inside(scope: str, name: str) -> str:
    """Return the scope within a call."""
    return f"{scope}/{name}" if scope else name


def unrolled(lowering: Lowering, root: int) -> EntryTasks:
    """Return the pieces of an entry, with functions inlined as far as needed."""
    pieces: list[Piece] = []
    count = 0

    def call(function: int, name: str, args: Sequence[int], scope: str) -> list[int]:
        nonlocal count
        fn = lowering.functions[function]
        if fn.number >= 0:
            outs = list(range(count, count + len(fn.results)))
            count += len(outs)
            pieces.append(Piece(-1, function, name, scope, list(args), outs))
            return outs
        here = inside(scope, name)
        value = {-1: -1, **dict(enumerate(args))}
        for step in fn.steps:
            ins = [value[k] for k in step.ins]
            if step.callee >= 0:
                results = call(step.callee, step.name, ins, here)
            else:
                results = list(range(count, count + len(step.outs)))
                count += len(results)
                pieces.append(Piece(step.row, -1, step.name, here, ins, results))
            value.update(zip(step.outs, results, strict=True))
        return [value[k] for k in fn.results]

    fn = lowering.functions[root]
    call(root, fn.name, [-1] * fn.params, "")
    return EntryTasks(pieces)


def open_calls(lowering: Lowering, maps: FunctionSummaries, pieces: Sequence[Piece]) -> None:
    """Set how late the parameters of called summarized functions may be."""
    late = {-1: AT_HAND}
    for piece in pieces:
        ins = [late[k] for k in piece.ins]
        if piece.function >= 0:
            number = lowering.functions[piece.function].number
            maps.open(number, ins)
            for out, origin in zip(piece.outs, maps.result_sources(number), strict=True):
                whence = ins[origin] if origin >= 0 else SETTLED
                late[out] = FREE if origin == IS_FREE else whence
            continue
        row = lowering.rows[piece.row]
        busies = row.stream == COMPUTE or bool(flags_of(row, lowering.blocking) & HOLDS)
        late.update(dict.fromkeys(piece.outs, SETTLED if busies else FREE))
        if busies:
            late.update({k: SETTLED for k in piece.ins if late[k] == FREE})


class TaskWriter:
    """Writer of the tasks of entries.

    Parameters
    ----------
    lowering : Lowering
    maps : FunctionSummaries
        The summaries of its summarized functions, which determine how late their parameters may be.
    """

    def __init__(self, lowering: Lowering, maps: FunctionSummaries) -> None:
        self.lowering, self.maps = lowering, maps
        self._hosts = any(row.issue_ps or row.host_waits for row in lowering.rows)

    def write(self, entry: EntryTasks) -> None:
        """Fill in the tasks of an entry."""
        self._row: list[int] = []
        self._duration: list[int] = []
        self._waits: list[tuple[int, int]] = []
        self._free: list[Waits] = [()] * (STREAM_PORTS + 1)
        self._value: dict[int, Waits] = {-1: ()}
        read = {k for piece in entry.pieces for k in piece.ins}
        for piece in entry.pieces:
            entry.task.append(len(self._row))
            if piece.function >= 0:
                entry.ports.append(self._call(piece, read))
            else:
                entry.task[-1] = self._op(piece)
                entry.ports.append([])
        entry.row = np.array(self._row, np.int64)
        entry.duration = np.array(self._duration, np.int64)
        entry.waits = np.array(self._waits, np.int64).reshape(-1, 2)

    def _task(self, row: int, duration: int, waits: Waits) -> int:
        number = len(self._row)
        self._row.append(row)
        self._duration.append(duration)
        self._waits += [(number, other) for other in dict.fromkeys(waits)]
        return number

    def _op(self, piece: Piece) -> int:
        row, free = self.lowering.rows[piece.row], self._free
        flags = flags_of(row, self.lowering.blocking)
        waits = sum((self._value[k] for k in piece.ins), ())
        port = None if flags & APART else _PORT.get(row.stream)
        waits += () if port is None else free[port]
        if flags & (AFTER | HOLDS):
            waits += free[COMPUTE_PORT]
        if self._hosts:
            free[HOST_PORT] = (self._task(-1, row.issue_ps, free[HOST_PORT]),)
            waits += free[HOST_PORT]
        task = self._task(piece.row, row.duration_ps, waits)
        if port is not None:
            free[port] = (task,)
        if flags & HOLDS:
            free[COMPUTE_PORT] = (task,)
        if flags & SYNC:
            free[HOST_PORT] = (task,)
        self._value.update(dict.fromkeys(piece.outs, (task,)))
        return task

    def _call(self, piece: Piece, read: set[int]) -> list[Waits]:
        number = self.lowering.functions[piece.function].number
        matrix = self.maps.matrix(number)
        ports = [
            *self._free[:STREAM_PORTS],
            *(self._value[piece.ins[p]] for p in self.maps.ports(number)),
        ]
        here = [k < STREAM_PORTS or bool(waits) for k, waits in enumerate(ports)]
        here[HOST_PORT] = self._hosts
        for stream in range(STREAM_PORTS):
            self._free[stream] = self._later(matrix[stream].tolist(), ports, here)
        for result, value in enumerate(piece.outs):
            if value in read:
                row = matrix[STREAM_PORTS + result].tolist()
                self._value[value] = self._later(row, ports, here)
        return ports

    def _later(self, row: Sequence[int], ports: Sequence[Waits], here: Sequence[bool]) -> Waits:
        """Return the tasks that end when a stream or a result is there."""
        later: Waits = ()
        for by, waits, counts in zip(row, ports, here, strict=True):
            if counts and by > NEVER:
                later += waits if by == 0 else (self._task(-1, by, waits),)
        return later
