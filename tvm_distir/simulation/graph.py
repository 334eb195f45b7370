# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The task graph of all entries: what the event loop schedules.

Devices of an entry run the same program. *Folded*, one device stands for all of them, so the cost
does not grow with their number: a collective then takes as long as its slowest group, and both
ends of a transfer are one device each. *Unfolded*, every device has its own tasks, and the
members of a collective are tied together: slow, and the check of the folding. Entries that share
a mesh have its collectives in one order; folded, each is tied together over the entries whose
devices meet in it, so that a device may seem to wait for one that only another of its entry meets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import SimulationError
from ..native import Tasks
from ..program import Program
from .costs import RECV, OpCosts, OpRow
from .flat import Flat
from .overlap import order_waits
from .rendezvous import DeviceTasks, Groups, meetings

Ints = npt.NDArray[np.int64]
_STREAMED = 3  # compute, comm, send; a receive occupies no stream


@dataclass(frozen=True)
class TaskGraph:
    """Tasks for the event loop, and which part of them belongs to which devices."""

    tasks: Tasks
    parts: tuple[DeviceTasks, ...]


def build_graph(
    program: Program,
    flats: Mapping[str, Flat],
    rows: Sequence[OpRow],
    costs: OpCosts,
    fold: bool,
    blocking: bool = False,
) -> TaskGraph:
    """Join the entries' tasks; see :func:`.overlap.order_waits` for ``blocking``.

    Raises
    ------
    SimulationError
        DIST0722 for a transfer with one end, DIST0712 for a collective on another mesh.
    """
    parts: list[DeviceTasks] = []
    size = 0
    for number, entry in enumerate(program.entries):
        devices = program.devices_of(entry)
        for share in [devices] if fold else [(device,) for device in devices]:
            parts.append(DeviceTasks(number, share, size))
            size += flats[entry.function].row.size
    durations = np.array([row.duration_ps for row in rows], np.int64)
    streams = np.array([row.stream for row in rows], np.int64)
    duration, stream, waits = [], [], []
    for place, part in enumerate(parts):
        flat = flats[program.entries[part.entry].function]
        _check_meshes(program, part, flat, rows)
        kind = streams[flat.row] if flat.row.size else np.zeros(0, np.int64)
        duration.append(durations[flat.row] if flat.row.size else kind)
        stream.append(np.where(kind == RECV, -1, kind + _STREAMED * place))
        inside = flat.use_ref >= 0
        waits.append(
            part.first
            + np.stack((flat.use_task[inside], flat.buffer_task[flat.use_ref[inside]]), axis=1)
        )
        waits.append(part.first + order_waits(flat, rows, blocking))
    groups = Groups(size)
    groups.transfers(program, parts, flats, rows)
    waits.append(np.array(groups.waits, np.int64).reshape(-1, 2))
    all_durations = np.concatenate(duration)
    for shared in meetings(program, parts, flats, rows):
        if not fold:
            groups.collectives(shared, rows, costs, all_durations)
        elif len(shared.parts) > 1:
            groups.shared(shared, rows)
    tasks = Tasks.from_pairs(
        all_durations, np.concatenate(stream), np.concatenate(waits), groups.of_task
    )
    return TaskGraph(tasks, tuple(parts))


def _check_meshes(program: Program, part: DeviceTasks, flat: Flat, rows: Sequence[OpRow]) -> None:
    devices, known = set(part.devices), set[int]()
    for number in np.unique(flat.row).tolist():
        row = rows[number]
        if row.op.kind not in ("collective", "transfer") or row.op.mesh in known:
            continue
        if not devices <= set(program.meshes[row.op.mesh].device_ids):
            names = [
                program.meshes[m].name for m in (row.op.mesh, program.entries[part.entry].mesh)
            ]
            raise SimulationError(
                "DIST0712",
                f"a {row.op.collective} on the mesh {names[0]} in a program of the mesh {names[1]}",
                place=f"{row.function}/{row.op.name}",
                remedy="Export the program again.",
            )
        known.add(row.op.mesh)
