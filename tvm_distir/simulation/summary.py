# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A function as a max-plus map: from when streams and operands are there to when each op starts.

With fixed durations an op starts at ``max over ports (time of the port + longest path from it)``.
The ports are the compute stream, the communication stream, and those operands whose time can
matter by itself. The longest paths from a port are what the event loop gives when that port alone
is late, so late that all that waits for it does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..native import Tasks, schedule
from ..program import Op
from .costs import COMM, COMPUTE, RECV, OpRow
from .flat import NOTHING, Flat
from .overlap import blocking_rows, order_waits

Ints = npt.NDArray[np.int64]

NEVER = -(1 << 61)
"""Longest path to what does not wait for a port."""

_PORTS = [
    OpRow("", Op("port", "wait", "port"), stream, 0, "network") for stream in (COMPUTE, COMM, RECV)
]


class Summary:
    """A flat function between streams and operands.

    Parameters
    ----------
    flat : Flat
    rows : sequence of OpRow
    blocking : bool
        Whether plain collectives block.
    engine : str
        Event loop.

    Attributes
    ----------
    stream, duration : int64 arrays (tasks,)
    timed : list of int
        Parameters that are ports, behind the two streams; see :meth:`open`.
    """

    def __init__(self, flat: Flat, rows: Sequence[OpRow], blocking: bool, engine: str) -> None:
        self.flat, self.blocking, self.engine = flat, blocking, engine
        self.rows = [*rows, *_PORTS]
        self.stream = np.array([row.stream for row in self.rows], np.int64)[flat.row]
        self.duration = np.array([row.duration_ps for row in self.rows], np.int64)[flat.row]
        self.holds = (self.stream == COMPUTE) | blocking_rows(self.rows, blocking)[flat.row]
        self.timed: list[int] = []
        outer = (flat.use_ref < 0) & (flat.use_ref != NOTHING)
        self.param_task, self.param = flat.use_task[outer], -1 - flat.use_ref[outer]
        inner = flat.use_ref >= 0
        self.use_task, self.use_buffer = flat.use_task[inner], flat.use_ref[inner]
        refs = flat.results
        self.kept, place = np.unique(refs[refs >= 0], return_inverse=True)
        self.result_kept = np.full(refs.size, -1, np.int64)
        self.result_kept[refs >= 0] = place.ravel()
        self.result_param = np.where((refs < 0) & (refs != NOTHING), -1 - refs, -1)

    @functools.cached_property
    def flops(self) -> int:
        """Arithmetic operations of all tasks."""
        return sum(self.rows[number].op.flops for number in self.flat.row.tolist())

    def awaited_apart(self) -> set[int]:
        """Parameters whose time can matter by itself: collectives that wait for no op read them."""
        started = np.array([row.op.is_start for row in self.rows], bool)[self.flat.row]
        return set(self.param[~(self.holds | started)[self.param_task]].tolist())

    def unsettled(self) -> set[int]:
        """Results that may come later than the compute stream is free: no op on it waits for them.

        Those of collectives, and what is a parameter itself.
        """
        read = set(self.use_buffer[self.holds[self.use_task]].tolist())
        late = [
            not self.holds[self.flat.buffer_task[b]] and b not in read for b in self.kept.tolist()
        ]
        return {
            number
            for number, (k, p) in enumerate(
                zip(self.result_kept.tolist(), self.result_param.tolist(), strict=True)
            )
            if p >= 0 or (k >= 0 and late[k])
        }

    def open(self, timed: Sequence[int]) -> None:
        """Say which parameters are ports."""
        self.timed = list(timed)

    @property
    def port_count(self) -> int:
        """Streams and operands."""
        return 2 + len(self.timed)

    @functools.cached_property
    def _graph(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Durations, streams, pairs (task, task it waits for), groups; the ports come first."""
        ports, count = self.port_count, int(self.flat.row.size)
        first = len(self.rows) - len(_PORTS)
        head = np.array([first, first + 1, *[first + 2] * len(self.timed)], np.int64)
        row = np.concatenate((head, self.flat.row))
        order = order_waits(dataclasses.replace(self.flat, row=row), self.rows, self.blocking)
        port_of = {param: 2 + k for k, param in enumerate(self.timed)}
        outer = [
            (task + ports, port_of[param])
            for task, param in zip(self.param_task.tolist(), self.param.tolist(), strict=True)
            if param in port_of
        ]
        waits = np.concatenate(
            (
                np.stack(
                    (self.use_task + ports, self.flat.buffer_task[self.use_buffer] + ports), axis=1
                ),
                np.array(outer, np.int64).reshape(-1, 2),
                order,
            )
        )
        stream = np.concatenate(
            (np.array([COMPUTE, COMM, *[-1] * len(self.timed)], np.int64), self.stream)
        )
        duration = np.concatenate((np.zeros(ports, np.int64), self.duration))
        return duration, stream, waits, np.full(ports + count, -1, np.int64)

    def starts_at(self, times: Sequence[int]) -> Ints:
        """When each task starts, from the times of the ports."""
        duration, stream, waits, group = self._graph
        first = min(times)
        late = duration.copy()
        late[: self.port_count] = np.array(times, np.int64) - first
        start, _ = schedule(Tasks.from_pairs(late, stream, waits, group), self.engine)
        found: Ints = start[self.port_count :] + first
        return found

    @functools.cached_property
    def paths(self) -> Ints:
        """Longest paths from each port to the start of each task, (ports, tasks)."""
        late = int(self.duration.sum()) + 1
        found = np.full((self.port_count, self.flat.row.size), NEVER, np.int64)
        for port in range(self.port_count):
            times = [0] * self.port_count
            times[port] = late
            start = self.starts_at(times)
            reached = start >= late
            found[port, reached] = start[reached] - late
        return found

    def starts(self, times: Ints) -> Ints:
        """When each task of each run starts, (runs, tasks), from (runs, ports) times."""
        found: Ints = times[:, 0, None] + self.paths[0]
        for port in range(1, self.port_count):
            np.maximum(found, times[:, port, None] + self.paths[port], out=found)
        return found

    @functools.cached_property
    def out_tasks(self) -> tuple[Ints, Ints]:
        """Tasks that hold the compute stream, and those on the communication stream."""
        return np.flatnonzero(self.holds), np.flatnonzero(self.stream == COMM)

    @functools.cached_property
    def ends(self) -> Ints:
        """Longest paths to the end of either stream and of the kept results, (2 + kept, ports)."""
        end = np.where(self.paths > NEVER, self.paths + self.duration, NEVER)
        found = np.full((2 + self.kept.size, self.port_count), NEVER, np.int64)
        for stream, tasks in enumerate(self.out_tasks):
            if tasks.size:
                found[stream] = end[:, tasks].max(axis=1)
            found[stream, stream] = max(found[stream, stream], 0)
        found[2:] = end[:, self.flat.buffer_task[self.kept]].T
        return found

    def finish(self, times: Sequence[int], start: Ints) -> Ints:
        """What :attr:`ends` gives, of one run whose tasks' starts are known."""
        end = start + self.duration
        compute, comm = self.out_tasks
        streams = [
            max(times[k], int(end[tasks].max(initial=0))) for k, tasks in enumerate((compute, comm))
        ]
        return np.concatenate((np.array(streams, np.int64), end[self.flat.buffer_task[self.kept]]))
