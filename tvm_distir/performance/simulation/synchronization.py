# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the tasks that start together: of a collective, or both ends of a transfer."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.program import Program
from tvm_distir.support import SimulationError

from .entry_tasks import EntryTasks
from .op_costs import SEND, OpCosts, OpRow

Ints = npt.NDArray[np.int64]
TransferKey = tuple[int, int, int]
"""Tag, sending mesh, receiving mesh."""


@dataclass(frozen=True)
class DeviceTasks:
    """Tasks of a device of an entry: ``[first, first + number of tasks)``.

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
class CollectiveGroups:
    """Collectives on a mesh.

    Attributes
    ----------
    mesh : Mesh
    row : int64 array (collectives,)
        Ops, in order.
    parts : tuple of DeviceTasks
        The tasks of the devices that take part.
    tasks : int64 array (parts, collectives)
        The tasks of each part.
    """

    mesh: Mesh
    row: Ints
    parts: tuple[DeviceTasks, ...]
    tasks: Ints


def check_taking_part(
    program: Program, used: Mapping[str, set[int]], rows: Sequence[OpRow]
) -> None:
    """Refuse collectives on a mesh of which some devices have none.

    Parameters
    ----------
    program : Program
    used : mapping of str to set of int
        Meshes of the collectives of each entry's function.
    rows : sequence of OpRow
    """
    for number in sorted(set().union(*used.values())):
        mesh = program.meshes[number]
        participants = [
            program.devices_of(e) for e in program.entries if number in used[e.function]
        ]
        if any(devices is mesh.device_ids for devices in participants):
            continue
        missing = set(mesh.device_ids).difference(*participants)
        if missing:
            row = next(r for r in rows if r.op.kind == "collective" and r.op.mesh == number)
            raise _another_order(mesh, row, f"the devices {sorted(missing)} do not take part")


def meetings(
    program: Program,
    parts: Sequence[DeviceTasks],
    entries: Mapping[str, EntryTasks],
    rows: Sequence[OpRow],
    tied: Collection[int],
) -> Iterator[CollectiveGroups]:
    """Yield the collectives by mesh, of the meshes ``tied``.

    Raises
    ------
    SimulationError
        DIST0712 where entries that share a mesh have other collectives on it.
    """
    here = (row.op.mesh if row.op.kind == "collective" else -1 for row in rows)
    mesh_of = np.array([*(mesh if mesh in tied else -1 for mesh in here), -1], np.int64)
    members_of: dict[int, list[tuple[DeviceTasks, Ints, Ints]]] = {}
    for part in parts:
        entry_rows = entries[program.entries[part.entry].function].row
        if not entry_rows.size:
            continue
        where = mesh_of[entry_rows]
        for number in np.unique(where[where >= 0]).tolist():
            tasks = np.flatnonzero(where == number)
            members_of.setdefault(number, []).append((part, entry_rows[tasks], part.first + tasks))
    for number, members in sorted(members_of.items()):
        mesh = program.meshes[number]
        _, first, _ = members[0]
        for part, other, _ in members[1:]:
            _check_same(mesh, part, [rows[i] for i in first], [rows[i] for i in other])
        yield CollectiveGroups(
            mesh, first, tuple(m[0] for m in members), np.stack([tasks for _, _, tasks in members])
        )


def _check_same(
    mesh: Mesh, part: DeviceTasks, first: Sequence[OpRow], other: Sequence[OpRow]
) -> None:
    """Refuse another number, order or kind of collectives."""
    for expected, two in itertools.zip_longest(first, other):
        if expected is two:
            continue
        if expected is None or two is None or _collective_key(expected) != _collective_key(two):
            raise _another_order(
                mesh,
                expected or two,
                f"device {part.devices[0]} has another operation in its position",
            )


def _collective_key(row: OpRow) -> tuple[str, tuple[int, ...], int]:
    return row.op.collective, row.op.mesh_axes, row.op.payload_bytes


def _another_order(mesh: Mesh, row: OpRow, problem: str) -> SimulationError:
    return SimulationError(
        "DIST0712", f"a {row.op.collective} on the mesh {mesh.name}: {problem}",
        location=f"{row.function}/{row.op.name}",
        remedy="Order the collectives of a mesh equally on all of its devices.",
    )  # fmt: skip


@dataclass(frozen=True)
class _Ends:
    """Ends of a transfer key: per part, the sending or receiving tasks in order."""

    location: str
    sends: dict[DeviceTasks, list[int]]
    receives: dict[DeviceTasks, list[int]]

    def counts(self) -> tuple[int, int]:
        """Return the sends and receives of a single device."""
        sent, received = (len(next(iter(x.values()), [])) for x in (self.sends, self.receives))
        return sent, received

    def times(self) -> Iterator[tuple[dict[DeviceTasks, int], dict[DeviceTasks, int]]]:
        """Yield the tasks of the first, second, ... transfer."""
        for number in range(self.counts()[0]):
            yield (
                {part: tasks[number] for part, tasks in self.sends.items()},
                {part: tasks[number] for part, tasks in self.receives.items()},
            )


class Groups:
    """Groups of tasks that start together, by number.

    Attributes
    ----------
    of_task : int64 array (tasks,)
        Group of each task, -1 for none.
    waits : list of (task, task)
        Tasks that wait for another of the same device.
    """

    def __init__(self, size: int) -> None:
        self.of_task = np.full(size, -1, np.int64)
        self.waits: list[tuple[int, int]] = []
        self.count = 0

    def add(self, members: Sequence[int] | Ints) -> None:
        """Let tasks start together."""
        self.of_task[members] = self.count
        self.count += 1

    def transfers(
        self,
        program: Program,
        parts: Sequence[DeviceTasks],
        entries: Mapping[str, EntryTasks],
        rows: Sequence[OpRow],
    ) -> None:
        """Tie the k-th send of a tag and pair of meshes to the k-th receive of the same.

        A device that sends nothing to others need not wait for those that receive, nor does one
        that receives nothing from others; what it has itself is there with its own send.
        """
        moves = np.array([row.op.kind == "transfer" and row.wire_bytes > 0 for row in rows], bool)
        for key, ends in _transfer_ends(program, parts, entries, rows).items():
            sent, received = ends.counts()
            if sent != received:
                tag, src, dst = key
                raise SimulationError(
                    "DIST0722",
                    f"{sent} sends and {received} receives with the tag {tag} from "
                    f"{program.meshes[src].name} to {program.meshes[dst].name}",
                    location=ends.location,
                    remedy="Give every send exactly one receive with its tag.",
                )  # fmt: skip

            def goes(part: DeviceTasks, task: int) -> bool:
                entry_tasks = entries[program.entries[part.entry].function]
                return bool(moves[entry_tasks.row[task - part.first]])

            for sends, receives in ends.times():
                remote = [p for p, task in receives.items() if p not in sends or goes(p, task)]
                busy = [p for p, task in sends.items() if goes(p, task)] or list(sends)
                if remote:
                    self.add([*(sends[p] for p in busy), *(receives[p] for p in remote)])
                tied = busy if remote else ()
                self.waits += [
                    (task, sends[part])
                    for part, task in receives.items()
                    if part in sends and not (part in tied and part in remote)
                ]

    def collectives(
        self, shared: CollectiveGroups, rows: Sequence[OpRow], costs: OpCosts, durations: Ints
    ) -> None:
        """Tie the members of every group of every collective, each with its duration."""
        part_of = {part.devices[0]: i for i, part in enumerate(shared.parts)}
        for number, tasks in zip(shared.row.tolist(), shared.tasks.T, strict=True):
            row = rows[number]
            times = costs.group_durations_ps(row.op, f"{row.function}/{row.op.name}")
            for group, time_ps in zip(shared.mesh.groups(row.op.mesh_axes), times, strict=True):
                members = tasks[[part_of[device] for device in group]]
                durations[members] = time_ps
                self.add(members)

    def shared(self, shared: CollectiveGroups, rows: Sequence[OpRow]) -> None:
        """Tie the tasks of every collective over the entries whose devices form groups."""
        together: dict[tuple[int, ...], list[list[int]]] = {}
        for number, tasks in zip(shared.row.tolist(), shared.tasks.T, strict=True):
            axes = rows[number].op.mesh_axes
            if axes not in together:
                together[axes] = _joined_parts(shared, axes)
            for members in together[axes]:
                self.add(tasks[members])


def _joined_parts(shared: CollectiveGroups, axes: tuple[int, ...]) -> list[list[int]]:
    """Return the sets of parts of which some group has devices, several each."""
    part_of = {device: i for i, part in enumerate(shared.parts) for device in part.devices}
    joined: list[set[int]] = []
    for group in shared.mesh.groups(axes):
        parts = {part_of[device] for device in group}
        separate = [members for members in joined if not members & parts]
        joined = [*separate, parts.union(*(members for members in joined if members & parts))]
    return [sorted(members) for members in joined if len(members) > 1]


def _transfer_ends(
    program: Program,
    parts: Sequence[DeviceTasks],
    entries: Mapping[str, EntryTasks],
    rows: Sequence[OpRow],
) -> dict[TransferKey, _Ends]:
    transfer_ends: dict[TransferKey, _Ends] = {}
    is_transfer = np.array([*(row.op.kind == "transfer" for row in rows), False], bool)
    for part in parts:
        entry_rows = entries[program.entries[part.entry].function].row
        for task in np.flatnonzero(is_transfer[entry_rows]).tolist():
            row = rows[entry_rows[task]]
            op, sends = row.op, row.stream == SEND
            src, dst = (op.mesh, op.peer_mesh) if sends else (op.peer_mesh, op.mesh)
            location = f"{row.function}/{op.name}"
            ends = transfer_ends.setdefault((op.tag, src, dst), _Ends(location, {}, {}))
            side = ends.sends if sends else ends.receives
            side.setdefault(part, []).append(part.first + task)
    return transfer_ends
