# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute starts and events of the scheduled tasks of a device lazily."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_distir.performance.event_loop.function_summaries import (
    NEVER,
    STREAM_PORTS,
    FunctionSummaries,
    Ints,
)
from tvm_distir.performance.traces.records import Event, MessageRecords, OpRecords, Task

from .entry_tasks import EntryTasks, inside
from .lowering import Lowering
from .module_times import ModuleNames
from .op_costs import COMPUTE, SEND, OpRow
from .op_dependencies import Dependencies
from .op_records import op_kinds, seconds


@dataclass(frozen=True)
class Timeline:
    """Timeline of the tasks of a device.

    Attributes
    ----------
    device : int
    entry : EntryTasks
    lowering : Lowering
    maps : FunctionSummaries
    task_start, task_end : int64 arrays
        The times of the entry's tasks, in picoseconds.
    modules : ModuleNames
    """

    device: int
    entry: EntryTasks
    lowering: Lowering
    maps: FunctionSummaries
    task_start: Ints
    task_end: Ints
    modules: ModuleNames

    def __len__(self) -> int:
        return int(self._sizes.sum())

    @functools.cached_property
    def _sizes(self) -> Ints:
        """Number of ops of each piece."""
        known = self.lowering.functions
        sizes = [
            1 if piece.function < 0 else known[piece.function].tasks for piece in self.entry.pieces
        ]
        return np.array(sizes, np.int64)

    @functools.cached_property
    def single(self) -> tuple[Ints, Ints, Ints]:
        """Starts, ends and rows of the pieces that are ops."""
        ops = [k for k, piece in enumerate(self.entry.pieces) if piece.function < 0]
        tasks = np.array(self.entry.task, np.int64)[ops]
        return self.task_start[tasks], self.task_end[tasks], self.entry.row[tasks]

    @functools.cached_property
    def calls(self) -> list[tuple[int, Ints]]:
        """Return the number of each call of a summarized function, and its port times."""
        end, calls = self.task_end, []
        for piece, ports in zip(self.entry.pieces, self.entry.ports, strict=True):
            if piece.function < 0:
                continue
            times = [
                int(end[list(waits)].max()) if waits else 0 if k < STREAM_PORTS else NEVER
                for k, waits in enumerate(ports)
            ]
            number = self.lowering.functions[piece.function].number
            calls.append((number, np.array(times, np.int64)))
        return calls

    def busy(self) -> tuple[int, int, int]:
        """Return the time in which the device computes, communicates, and does both."""
        start, end, row = self.single
        compute = np.array([op_row.stream == COMPUTE for op_row in self.lowering.rows], bool)[row]
        pairs = np.stack((start, end), axis=1)
        functions = np.array([number for number, _ in self.calls], np.int64)
        times = np.concatenate([np.zeros(0, np.int64), *(times for _, times in self.calls)])
        return self.maps.busy(functions, times, pairs[compute].ravel(), pairs[~compute].ravel())

    @functools.cached_property
    def start(self) -> Ints:
        """Starts of all ops, in order of issue."""
        single, _, _ = self.single
        return self._in_order(
            single, [self.maps.expand(number, times[None])[0] for number, times in self.calls]
        )

    @functools.cached_property
    def issued(self) -> Ints:
        """Starts of the ops of the program, in order of issue."""
        called = [
            self.lowering.task_rows(piece.function)
            for piece in self.entry.pieces
            if piece.function >= 0
        ]
        return self.start[self.lowering.in_program[self._in_order(self.single[2], called)]]

    @functools.cached_property
    def end(self) -> Ints:
        """Ends of all ops, in order of issue."""
        start, end, _ = self.single
        called = [
            self.lowering.durations(piece.function)
            for piece in self.entry.pieces
            if piece.function >= 0
        ]
        return self.start + self._in_order(end - start, called)

    def _in_order(self, single: Ints, called: Sequence[Ints]) -> Ints:
        """Merge the values of ops and of calls in issue order."""
        result = np.empty(len(self), np.int64)
        first = np.cumsum(self._sizes) - self._sizes
        is_op = np.array([piece.function < 0 for piece in self.entry.pieces], bool)
        result[first[is_op]] = single
        for position, values in zip(first[~is_op].tolist(), called, strict=True):
            result[position : position + values.size] = values
        return result

    def __iter__(self) -> Iterator[Event]:
        columns = (op_kinds(self.modules, self._ops()), self.start.tolist(), self.end.tolist())
        for (name, stream, args), start, end in zip(*columns, strict=True):
            yield Event(self.device, stream, name, seconds(start), seconds(end - start), args)

    def sheets(self) -> Iterator[OpRecords]:
        """Yield the ops but for transfers."""
        ops, full = list(self._ops()), np.zeros(1, np.int64)
        local_ops = [k for k, (row, _) in enumerate(ops) if row.op.kind != "transfer"]
        kinds = op_kinds(self.modules, (ops[k] for k in local_ops))
        yield OpRecords(
            kinds,
            self.start[None, local_ops],
            self.end[None, local_ops],
            full,
            "",
            "",
            full,
            np.array([[0, self.end.max(initial=0)]], np.int64),
        )

    def messages(self) -> Iterator[MessageRecords]:
        """Yield the transfers by peer, in the order of time."""
        messages: dict[str, list[tuple[int, int, OpRow, str, Hashable]]] = {}
        often: dict[Hashable, int] = {}
        times = zip(self.start.tolist(), self.end.tolist(), strict=True)
        for (row, scope), (start, end) in zip(self._ops(), times, strict=True):
            if row.op.kind != "transfer":
                continue
            sends = row.stream == SEND
            ends = (row.op.mesh, row.op.peer_mesh)
            key = (row.op.tag, *(ends if sends else ends[::-1]))
            often[key] = often.get(key, -1) + 1
            stream = "send" if sends else f"recv from mesh {row.op.peer_mesh}"
            messages.setdefault(stream, []).append((start, end, row, scope, (key, often[key])))
        for stream, some in messages.items():
            some.sort(key=lambda message: message[0])
            start, end, rows, scopes, flows = zip(*some, strict=True)
            kinds = op_kinds(self.modules, zip(rows, scopes, strict=True))
            names = [row.op.name for row in rows]
            yield MessageRecords(stream, kinds, names, np.array(start), np.array(end), flows)

    def tasks(self) -> list[Task]:
        """Return the ops, with the tasks that they wait for."""
        dependencies = Dependencies(self.lowering)
        dependencies.entry(self.entry)
        return dependencies.tasks

    def _ops(self) -> Iterator[tuple[OpRow, str]]:
        """Yield all ops and the calls around them, ``main/layer_3``: names of bindings."""
        for piece in self.entry.pieces:
            if piece.function < 0:
                yield self.lowering.rows[piece.row], piece.scope
            else:
                yield from self.lowering.scoped(piece.function, inside(piece.scope, piece.name))

    def counts(self) -> Ints:
        """Return how often each row is run."""
        counts = np.bincount(self.single[2], minlength=len(self.lowering.rows))
        for piece in self.entry.pieces:
            if piece.function >= 0:
                counts = counts + self.lowering.counts(piece.function)
        return counts
