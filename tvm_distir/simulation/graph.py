# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The task graph of all entries: what the event loop schedules.

Devices of a mesh run the same program. *Folded*, one device stands for all of them, so the cost
does not grow with their number: a collective then takes as long as its slowest group, and both
ends of a transfer are one device each. *Unfolded*, every device has its own tasks, and the
members of a collective are tied together: slow, and the check of the folding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import SimulationError
from ..native import Tasks
from ..program import Mesh, Program
from .costs import RECV, SEND, OpCosts, OpRow
from .flat import Flat
from .overlap import order_waits

Ints = npt.NDArray[np.int64]
_STREAMED = 3  # compute, comm, send; a receive occupies no stream

TransferKey = tuple[int, int, int]
"""Tag, sending mesh, receiving mesh."""


@dataclass(frozen=True)
class Part:
    """The tasks of one device of an entry: ``[first, first + number of tasks)``.

    Attributes
    ----------
    entry : int
        Number of the entry.
    devices : tuple of int
        The devices it stands for.
    first : int
    """

    entry: int
    devices: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Graph:
    """Tasks for the event loop, and which part of them belongs to which devices."""

    tasks: Tasks
    parts: tuple[Part, ...]


def build_graph(
    program: Program,
    flats: Mapping[str, Flat],
    rows: Sequence[OpRow],
    costs: OpCosts,
    fold: bool,
    blocking: bool = False,
) -> Graph:
    """Join the entries' tasks; see :func:`.overlap.order_waits` for ``blocking``.

    Raises
    ------
    SimulationError
        DIST0722 for a transfer with one end, DIST0712 for a collective on another mesh.
    """
    parts: list[Part] = []
    size = 0
    for number, entry in enumerate(program.entries):
        devices = program.meshes[entry.mesh].device_ids
        for share in [devices] if fold else [(device,) for device in devices]:
            parts.append(Part(number, share, size))
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
    groups = _Groups(size)
    groups.transfers(program, parts, flats, rows)
    all_durations = np.concatenate(duration)
    if not fold:
        groups.collectives(program, parts, flats, rows, costs, all_durations)
    tasks = Tasks.from_pairs(
        all_durations, np.concatenate(stream), np.concatenate(waits), groups.of_task
    )
    return Graph(tasks, tuple(parts))


def _check_meshes(program: Program, part: Part, flat: Flat, rows: Sequence[OpRow]) -> None:
    mesh = program.entries[part.entry].mesh
    for number in np.unique(flat.row).tolist():
        row = rows[number]
        if row.op.kind in ("collective", "transfer") and row.op.mesh != mesh:
            names = [program.meshes[m].name for m in (row.op.mesh, mesh)]
            raise SimulationError(
                "DIST0712",
                f"a {row.op.collective} on the mesh {names[0]} in a program of the mesh {names[1]}",
                place=f"{row.function}/{row.op.name}",
                remedy="Export the program again.",
            )


class _Groups:
    """Numbers the groups of tasks that start together."""

    def __init__(self, size: int) -> None:
        self.of_task = np.full(size, -1, np.int64)
        self.count = 0

    def transfers(
        self,
        program: Program,
        parts: Sequence[Part],
        flats: Mapping[str, Flat],
        rows: Sequence[OpRow],
    ) -> None:
        """Tie the k-th send of a tag and pair of meshes to the k-th receive of the same."""
        ends: tuple[dict[TransferKey, list[Ints]], dict[TransferKey, list[Ints]]] = ({}, {})
        names: dict[TransferKey, str] = {}
        is_transfer = np.array([row.op.kind == "transfer" for row in rows], bool)
        for part in parts:
            flat = flats[program.entries[part.entry].function]
            found: dict[tuple[int, TransferKey], list[int]] = {}
            where = np.flatnonzero(is_transfer[flat.row]) if flat.row.size else flat.row
            for task in where.tolist():
                row = rows[flat.row[task]]
                op, sends = row.op, row.stream == SEND
                src, dst = (op.mesh, op.peer_mesh) if sends else (op.peer_mesh, op.mesh)
                key = (op.tag, src, dst)
                names.setdefault(key, f"{row.function}/{op.name}")
                found.setdefault((0 if sends else 1, key), []).append(part.first + task)
            for (side, key), tasks in found.items():
                ends[side].setdefault(key, []).append(np.array(tasks, np.int64))
        for key, place in names.items():
            counts = [len(side[key][0]) if key in side else 0 for side in ends]
            if counts[0] != counts[1]:
                tag, src, dst = key
                raise SimulationError(
                    "DIST0722",
                    f"{counts[0]} sends and {counts[1]} receives with the tag {tag} from "
                    f"{program.meshes[src].name} to {program.meshes[dst].name}",
                    place=place,
                    remedy="Give every send one receive with its tag.",
                )
            for members in zip(*ends[0][key], *ends[1][key], strict=True):
                self.of_task[list(members)] = self.count
                self.count += 1

    def collectives(
        self,
        program: Program,
        parts: Sequence[Part],
        flats: Mapping[str, Flat],
        rows: Sequence[OpRow],
        costs: OpCosts,
        durations: Ints,
    ) -> None:
        """Tie the members of every group of every collective, each with its own duration."""
        for number, entry in enumerate(program.entries):
            mesh: Mesh = program.meshes[entry.mesh]
            first = {part.devices[0]: part.first for part in parts if part.entry == number}
            flat = flats[entry.function]
            for task, row_number in enumerate(flat.row.tolist()):
                row = rows[row_number]
                if row.op.kind != "collective":
                    continue
                times = costs.group_durations_ps(row.op, f"{row.function}/{row.op.name}")
                for group, time_ps in zip(mesh.groups(row.op.mesh_axes), times, strict=True):
                    members = [first[device] + task for device in group]
                    self.of_task[members] = self.count
                    durations[members] = time_ps
                    self.count += 1
