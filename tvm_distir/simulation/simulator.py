# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``simulate``: from a program and a system to a result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..native import schedule
from ..program import Mesh, Program
from ..system import System
from .costs import COMPUTE, SEND, OpCosts, OpRow
from .flat import Flat, Flattener
from .graph import TaskGraph, build_graph
from .intervals import measure, overlap, union
from .lanes import CollectiveTotal, DeviceResult, Lane
from .memory import lifetimes, live_memory
from .rendezvous import DeviceTasks
from .result import Result
from .timeline import Timeline, seconds


def simulate(
    program: Program,
    system: System,
    *,
    engine: str = "native",
    fold_devices: bool = True,
    blocking: bool = False,
) -> Result:
    """Predict one step: time, memory and traffic of every device.

    Event driven: every device has a compute stream, a communication stream for collectives and
    one for sends; each runs its ops in program order, and an op starts when its operands are
    there. Of an ``If`` the dearer branch runs (by the sum of its ops' times), as
    ``Result.branches`` says; it starts when the condition is there. Ops cost what the roofline
    says, collectives alpha-beta over the ring (see :class:`tvm_distir.system.System`). Live
    memory is counted byte by byte.

    Parameters
    ----------
    program : Program
    system : System
    engine : str
        ``native``, or ``reference`` for the event loop in plain Python.
    fold_devices : bool
        Let one device stand for all of its mesh, which run the same program. False simulates
        each of them, members of collectives tied together.
    blocking : bool
        Let collectives that are not split into a start and a done stop the compute stream, as
        an engine without a stream for them does. False: they only wait for their operands,
        and only what reads their results waits for them.

    Raises
    ------
    SimulationError
        DIST0712 for a program that contradicts itself, DIST0720 when devices wait for each
        other forever, DIST0721 for times that are no numbers, DIST0722 for a transfer with one
        end.
    DependencyError
        DIST0110 without the native library.
    """
    clock = time.perf_counter()
    timings_s: dict[str, float] = {}

    def lap(stage: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        timings_s[stage], clock = now - clock, now

    costs = OpCosts(program, system)
    flattener = Flattener(program, costs)
    flats = flattener.flatten()
    graph = build_graph(program, flats, flattener.rows, costs, fold_devices, blocking)
    lap("build")
    names = _TaskNames(program, graph, flats, flattener.rows)
    start, end = schedule(graph.tasks, engine, names)
    lap("schedule")
    finish = int(end.max(initial=0))
    lanes: list[Lane] = []
    devices: list[DeviceResult] = []
    for part in graph.parts:
        entry = program.entries[part.entry]
        flat = flats[entry.function]
        own = slice(part.first, part.first + flat.row.size)
        timeline = Timeline(
            part.devices[0], entry.function, flat, flattener.rows, flattener.calls,
            start[own], end[own],
        )  # fmt: skip
        lane, found = _account(program, part, timeline, finish)
        lanes.append(lane)
        devices.extend(found)
    result = Result(
        system=system.name,
        time_s=seconds(finish),
        peak_memory_bytes=max(device.peak_memory_bytes for device in devices),
        memory_capacity_bytes=system.memory_capacity_bytes,
        devices=tuple(sorted(devices, key=lambda device: device.id)),
        collectives=_collectives(program, graph, flats, flattener.rows),
        unmodelled_ops=_unmodelled(flattener.rows),
        branches=tuple(flattener.branches),
        lanes=tuple(lanes),
        engine=engine,
        timings_s=timings_s,
    )
    lap("account")
    return result


class _TaskNames(Sequence[str]):
    """Names of tasks for messages, made when asked for."""

    def __init__(
        self, program: Program, graph: TaskGraph, flats: Mapping[str, Flat], rows: Sequence[OpRow]
    ) -> None:
        self._program, self._graph, self._flats, self._rows = program, graph, flats, rows

    def __len__(self) -> int:
        return self._graph.tasks.size

    def __getitem__(self, task: Any) -> Any:
        part = next(p for p in reversed(self._graph.parts) if p.first <= task)
        entry = self._program.entries[part.entry]
        row = self._rows[self._flats[entry.function].row[task - part.first]]
        mesh = self._program.place_of(entry)
        return f"{mesh} device {part.devices[0]} {row.function}/{row.op.name} ({row.op.op})"


def _account(
    program: Program, part: DeviceTasks, timeline: Timeline, finish: int
) -> tuple[Lane, list[DeviceResult]]:
    """Sum up what the devices of a part did."""
    entry = program.entries[part.entry]
    place, flat = program.place_of(entry), timeline.flat
    compute = timeline.streams() == COMPUTE
    busy = union(timeline.start[compute], timeline.end[compute])
    talking = union(timeline.start[~compute], timeline.end[~compute])
    compute_ps, comm_ps = measure(*busy), measure(*talking)
    exposed_ps = comm_ps - overlap(busy, talking)
    inside = flat.use_ref >= 0
    alloc, free = lifetimes(
        timeline.start,
        timeline.end,
        flat.buffer_task,
        flat.use_task[inside],
        flat.use_ref[inside],
        flat.results[flat.results >= 0],
    )
    resident, params = _resident_bytes(program, entry.function)
    when, live = live_memory(resident, flat.buffer_bytes, alloc, free)
    peak = int(live.max())
    lane = Lane(
        place,
        part.devices,
        tuple((seconds(time_ps), size) for time_ps, size in zip(when.tolist(), live.tolist())),
        timeline.op_times(),
        timeline.function_times(),
        timeline,
    )
    flops = timeline.total_flops()
    return lane, [
        DeviceResult(
            device,
            place,
            seconds(compute_ps),
            seconds(comm_ps),
            seconds(exposed_ps),
            seconds(finish - compute_ps - exposed_ps),
            peak,
            params,
            flops,
        )
        for device in part.devices
    ]


def _resident_bytes(program: Program, root: str) -> tuple[int, int]:
    """Bytes at hand all the time: (inputs, weights and constants; weights and constants)."""
    fn = program.functions[root]
    inputs = weights = 0
    for index in fn.params:
        value = fn.values[index]
        if value.role == "weight":
            weights += value.bytes
        else:
            inputs += value.bytes
    seen, todo = {root}, [root]
    while todo:
        here = program.functions[todo.pop()]
        weights += sum(value.bytes for value in here.values if value.role == "constant")
        for op in here.ops:
            for callee in op.callees:
                if callee not in seen:
                    seen.add(callee)
                    todo.append(callee)
    return inputs + weights, weights


def _collectives(
    program: Program, graph: TaskGraph, flats: Mapping[str, Flat], rows: Sequence[OpRow]
) -> tuple[CollectiveTotal, ...]:
    """Collectives and transfers summed by kind, axes and group size, per mesh.

    Of entries that share a mesh, whose transfers may differ, the most of each.
    """
    most: dict[tuple[str, str, str, int], list[int]] = {}
    for number in sorted({part.entry for part in graph.parts}):
        entry = program.entries[number]
        counts = np.bincount(flats[entry.function].row, minlength=len(rows)).tolist()
        sums: dict[tuple[str, str, str, int], list[int]] = {}
        for row, count in zip(rows, counts, strict=True):
            op = row.op
            if not count or row.stream in (COMPUTE, SEND):
                continue
            mesh = program.meshes[op.mesh]
            kind, axes, size = _traffic(program, mesh, row)
            table = sums.setdefault((mesh.name, kind, axes, size), [0, 0, 0, 0])
            for i, value in enumerate((1, op.payload_bytes, row.wire_bytes, row.duration_ps)):
                table[i] += value * count
        for key, table in sums.items():
            most[key] = [max(pair) for pair in zip(most.get(key, table), table, strict=True)]
    return tuple(
        CollectiveTotal(kind, mesh_name, axes, size, count, payload, wire, seconds(spent))
        for (mesh_name, kind, axes, size), (count, payload, wire, spent) in sorted(most.items())
    )


def _traffic(program: Program, mesh: Mesh, row: OpRow) -> tuple[str, str, int]:
    """Kind, axes and group size to show."""
    op = row.op
    if op.kind == "collective":
        return op.collective, ",".join(mesh.axes[axis] for axis in op.mesh_axes), op.group_size
    peer = program.meshes[op.peer_mesh]
    return "send", f"{peer.name}->{mesh.name}", len(mesh.device_ids)


def _unmodelled(rows: Sequence[OpRow]) -> tuple[str, ...]:
    """Names of the ops whose work is not known, sorted."""
    return tuple(sorted({row.op.op for row in rows if not row.op.modelled}))
