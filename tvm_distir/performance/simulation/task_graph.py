# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build the task graph of all entries for the event loop.

Devices of an entry run the same program. *Folded*, a single device stands for all of them, so the
cost does not grow with their number: a collective then takes as long as its slowest group, and both
ends of a transfer are a single device each. *Unfolded*, every device has its own tasks, and the
members of a collective are tied together: slow, and the check of the folding. Entries that share a
mesh have its collectives in a single order; folded, each is tied together over the entries whose
devices meet in it, so that a device may seem to wait for a device that only another of its entry
meets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_distir.performance.event_loop.function_summaries import (
    FunctionSummaries,
)
from tvm_distir.performance.event_loop.tasks import Tasks
from tvm_distir.performance.program.parts import reached
from tvm_distir.performance.program.program import Program
from tvm_distir.support import SimulationError

from .entry_tasks import EntryTasks, TaskWriter, open_calls, unrolled
from .function_reader import read_functions
from .lowering import Lowering
from .op_costs import OpCosts, OpRow
from .synchronization import DeviceTasks, Groups, check_taking_part, meetings


@dataclass(frozen=True)
class TaskGraph:
    """Graph of tasks for the event loop, with the tasks of each device.

    Attributes
    ----------
    tasks : Tasks
    parts : tuple of DeviceTasks
    entries : dict of str to EntryTasks
        The tasks of each entry, by function.
    numbers : dict of str to int
        Functions in ``lowering``.
    lowering : Lowering
    maps : FunctionSummaries
    """

    tasks: Tasks
    parts: tuple[DeviceTasks, ...]
    entries: Mapping[str, EntryTasks]
    numbers: Mapping[str, int]
    lowering: Lowering
    maps: FunctionSummaries


def build_graph(program: Program, costs: OpCosts, fold: bool, blocking: bool = False) -> TaskGraph:
    """Join the tasks of entries (``blocking``: synchronous collectives stop compute).

    Raises
    ------
    SimulationError
        DIST0722 for a transfer with a single end, DIST0712 for a collective on another mesh.
    """
    roots = [entry.function for entry in program.entries]
    used = {name: _meshes(program, name) for name in roots}
    several = Counter(mesh for name in roots for mesh in used[name])
    tied = {mesh for mesh, count in several.items() if count > 1 or not fold}

    def meets(row: OpRow) -> bool:
        kind = row.op.kind
        return kind == "transfer" or (kind == "collective" and row.op.mesh in tied)

    lowering = Lowering(blocking, meets)
    numbers = read_functions(lowering, program, costs, roots)
    parts: list[DeviceTasks] = []
    entries: dict[str, EntryTasks] = {}
    maps = FunctionSummaries(lowering.table)
    for name in roots:
        if name not in entries:
            entries[name] = unrolled(lowering, numbers[name])
            open_calls(lowering, maps, entries[name].pieces)
    writer = TaskWriter(lowering, maps)
    for entry_tasks in entries.values():
        writer.write(entry_tasks)
    size = 0
    for number, entry in enumerate(program.entries):
        devices = program.devices_of(entry)
        _check_meshes(program, devices, entry.mesh, lowering, numbers[entry.function])
        for share in [devices] if fold else [(device,) for device in devices]:
            parts.append(DeviceTasks(number, share, size))
            size += entries[entry.function].row.size
    check_taking_part(program, used, lowering.rows)
    of_part = [entries[program.entries[part.entry].function] for part in parts]
    waits = [
        part.first + entry_tasks.waits for part, entry_tasks in zip(parts, of_part, strict=True)
    ]
    groups = Groups(size)
    groups.transfers(program, parts, entries, lowering.rows)
    waits.append(np.array(groups.waits, np.int64).reshape(-1, 2))
    durations = np.concatenate(
        [np.zeros(0, np.int64), *(entry_tasks.duration for entry_tasks in of_part)]
    )
    for shared in meetings(program, parts, entries, lowering.rows, tied):
        if not fold:
            groups.collectives(shared, lowering.rows, costs, durations)
        elif len(shared.parts) > 1:
            groups.shared(shared, lowering.rows)
    streams = np.full(size, -1, np.int64)
    tasks = Tasks.from_pairs(durations, streams, np.concatenate(waits), groups.of_task)
    return TaskGraph(tasks, tuple(parts), entries, numbers, lowering, maps)


def _meshes(program: Program, root: str) -> set[int]:
    """Return the meshes on which a function or its callees have collectives."""
    names: Iterable[str] = reached(program.functions, [root])
    return {
        op.mesh for name in names for op in program.functions[name].ops if op.kind == "collective"
    }


def _check_meshes(
    program: Program, devices: Sequence[int], mesh: int, lowering: Lowering, function: int
) -> None:
    """Refuse collectives and transfers on meshes that devices are not part of."""
    known = set[int]()
    known.update(k for k, mesh in enumerate(program.meshes) if mesh.device_ids is devices)
    for number in np.flatnonzero(lowering.counts(function)).tolist():
        row = lowering.rows[number]
        if row.op.kind not in ("collective", "transfer") or row.op.mesh in known:
            continue
        if not set(devices) <= set(program.meshes[row.op.mesh].device_ids):
            names = [program.meshes[m].name for m in (row.op.mesh, mesh)]
            raise SimulationError(
                "DIST0712",
                f"a {row.op.collective} on the mesh {names[0]} in a program of the mesh {names[1]}",
                location=f"{row.function}/{row.op.name}", remedy="Export the program again.",
            )  # fmt: skip
        known.add(row.op.mesh)


class TaskNames(Sequence[str]):
    """Names of tasks for messages, made when asked for."""

    def __init__(self, program: Program, graph: TaskGraph) -> None:
        self._program, self._graph = program, graph

    def __len__(self) -> int:
        return self._graph.tasks.size

    def __getitem__(self, task: int) -> str:  # type: ignore[override]  # one at a time
        part = next(p for p in reversed(self._graph.parts) if p.first <= task)
        entry = self._program.entries[part.entry]
        tasks = self._graph.entries[entry.function]
        mesh = self._program.location_of(entry)
        number = int(tasks.row[task - part.first])
        if number < 0:
            at = int(np.searchsorted(tasks.task, task - part.first, side="right")) - 1
            name = f"in the call {tasks.pieces[at].name}"
        else:
            row = self._graph.lowering.rows[number]
            name = f"{row.function}/{row.op.name} ({row.op.op})"
        return f"{mesh} device {part.devices[0]} {name}"
