# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize what devices did: time, memory, traffic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.performance.memory.entries import EntryMemory
from tvm_distir.performance.memory.timeline import curve
from tvm_distir.performance.program.parts import Mesh, Value, reached
from tvm_distir.performance.program.program import Program

from .costs import COMPUTE, SEND, OpRow
from .device_results import CollectiveTotal, DeviceGroupResult, DeviceResult, Held, Tables
from .function_table import FunctionTables
from .synchronization import DeviceTasks
from .timeline import Timeline, all_seconds, op_times, seconds, total_flops

Ints = npt.NDArray[np.int64]

TrafficKey = tuple[str, str, str, int]
"""Mesh, kind, axes and group size."""

Traffic = dict[TrafficKey, list[int]]
"""Executions, bytes of results, bytes on the wire, picoseconds."""


def account(
    program: Program,
    part: DeviceTasks,
    timeline: Timeline,
    finish: int,
    tables: FunctionTables,
    memory: Callable[[], EntryMemory],
    taken: Mapping[str, str],
) -> tuple[DeviceGroupResult, Work]:
    """Sum up what the devices of a part did; the work is that of each of them.

    Parameters
    ----------
    program : Program
    part : DeviceTasks
    timeline : Timeline
        Of the part.
    finish : int
        End of the step, in picoseconds.
    tables : FunctionTables
    memory : callable giving EntryMemory
        Of the part's entry.
    taken : mapping of str to str
        Branches that run, by place.
    """
    entry, rows = program.entries[part.entry], timeline.lowering.rows

    @functools.cache
    def held() -> Held:
        entry_memory = memory()
        during, after = entry_memory.course(taken)
        end = int(timeline.end.max(initial=0))
        when, live = curve(entry_memory.resident_bytes, timeline.start, during, end, after)
        course = tuple(zip(all_seconds(when), live.tolist(), strict=True))
        return Held(course, entry_memory.account, weight_bytes(program, entry.function))

    counts = timeline.counts()

    @functools.cache
    def shown() -> Tables:
        return op_times(rows, counts), timeline.function_times(tables)

    lane = DeviceGroupResult(program.place_of(entry), part.devices, timeline, held, shown)
    return lane, Work(*timeline.busy(), finish, total_flops(rows, counts))


class Work(NamedTuple):
    """Work of a device: times of computing, communicating and both, and the step's end.

    In picoseconds; and its arithmetic operations.
    """

    compute_ps: int
    comm_ps: int
    both_ps: int
    finish_ps: int
    flops: int

    @property
    def idle_ps(self) -> int:
        """Time in which it does neither."""
        return self.finish_ps - self.compute_ps - self.comm_ps + self.both_ps

    def of(self, lane: DeviceGroupResult) -> DeviceResult:
        """Return the result of the first device of a lane."""
        held = lane.held()
        return DeviceResult(
            lane.devices[0],
            lane.mesh,
            seconds(self.compute_ps),
            seconds(self.comm_ps),
            seconds(self.comm_ps - self.both_ps),
            seconds(self.idle_ps),
            held.account.peak_bytes,
            held.param_bytes,
            self.flops,
        )


def weight_bytes(program: Program, root: str) -> int:
    """Return the bytes of weights, states and constants of an entry."""
    fn = program.functions[root]
    _, weights = value_bytes(fn.values[index] for index in fn.params)
    return weights + constant_bytes(program, [root])


def value_bytes(values: Iterable[Value]) -> tuple[int, int]:
    """Return the bytes of inputs, and of weights and states."""
    sums = [0, 0]
    for value in values:
        sums[value.role in ("weight", "state")] += value.bytes
    return sums[0], sums[1]


def constant_bytes(program: Program, roots: Iterable[str]) -> int:
    """Return the bytes of the constants of functions and of all that they call."""
    here = (program.functions[name] for name in reached(program.functions, roots))
    return sum(value.bytes for fn in here for value in fn.values if value.role == "constant")


def collectives(
    program: Program, rows: Sequence[OpRow], counts: Mapping[int, Sequence[int]]
) -> tuple[CollectiveTotal, ...]:
    """Return the collectives and transfers summed by kind, axes and group size, per mesh.

    Of entries that share a mesh, whose transfers may differ, the most of each. ``counts`` says how
    often each entry, by its number, runs each row.
    """
    most: Traffic = {}
    for number in sorted(counts):
        for key, table in traffic(program, rows, counts[number]).items():
            most[key] = [max(pair) for pair in zip(most.get(key, table), table, strict=True)]
    return totals(most)


def traffic(program: Program, rows: Sequence[OpRow], counts: Sequence[int]) -> Traffic:
    """Return the collectives and transfers of rows that are run so often, on their meshes."""
    sums: Traffic = {}
    moves = zip(rows, counts, strict=True)
    add_moves(sums, program, (move for move in moves if move[1] and is_moved(move[0])))
    return sums


def is_moved(row: OpRow) -> bool:
    """Return whether a row counts as traffic: a collective, or what takes a transfer."""
    return row.stream not in (COMPUTE, SEND)


def add_moves(
    sums: Traffic, program: Program, moves: Iterable[tuple[OpRow, int]], mesh: Mesh | None = None
) -> None:
    """Add collectives and transfers that are run so often, on their meshes or on one."""
    for row, count in moves:
        op = row.op
        op_mesh = program.meshes[op.mesh] if mesh is None else mesh
        kind, axes, size = _ends(program, op_mesh, row)
        add_traffic(
            sums, (op_mesh.name, kind, axes, size), count,
            (op.payload_bytes, row.wire_bytes, row.duration_ps),
        )  # fmt: skip


def add_traffic(sums: Traffic, key: TrafficKey, count: int, each: tuple[int, int, int]) -> None:
    """Add executions, each of so many bytes of results, bytes on the wire and picoseconds."""
    table = sums.setdefault(key, [0, 0, 0, 0])
    for i, value in enumerate((1, *each)):
        table[i] += value * count


def totals(sums: Traffic) -> tuple[CollectiveTotal, ...]:
    """Return the sums by mesh, kind, axes and group size, sorted."""
    return tuple(
        CollectiveTotal(kind, mesh_name, axes, size, count, payload, wire, seconds(spent))
        for (mesh_name, kind, axes, size), (count, payload, wire, spent) in sorted(sums.items())
    )


def _ends(program: Program, mesh: Mesh, row: OpRow) -> tuple[str, str, int]:
    """Return the kind, axes and group size to show."""
    op = row.op
    if op.kind == "collective":
        return op.collective, ",".join(mesh.axes[axis] for axis in op.mesh_axes), op.group_size
    peer = program.meshes[op.peer_mesh]
    return "send", f"{peer.name}->{mesh.name}", len(mesh.device_ids)


def unmodelled(rows: Sequence[OpRow]) -> tuple[str, ...]:
    """Return the names of the ops whose work is not known, sorted."""
    return tuple(sorted({row.op.op for row in rows if not row.op.modelled}))
