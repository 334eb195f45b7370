# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write Chakra execution traces, a file per rank, as ASTRA-sim reads them.

A file is a ``GlobalMetadata`` and then nodes, each behind its length, by the
``schema/protobuf/et_def.proto`` of https://github.com/mlcommons/chakra. Nodes have durations and no
starts: they name those that they need (``data_deps``) and those before them on their stream
(``ctrl_deps``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tvm_distir.hardware import pair_up
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.support import lists_by_key, memoized

from .protobuf import block, integer, varint
from .records import Task, TracedDevices

VERSION = "0.0.4"
METADATA, LOAD, STORE, COMPUTE, SEND, RECV, COLLECTIVE = range(1, 8)
"""``NodeType``."""

_ON_DEVICE = {"compute": COMPUTE, "store": STORE, "fetch": LOAD}

TYPES = {
    name: number
    for number, name in enumerate(
        "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter".split()
    )
}
"""``CollectiveCommType``; an exchange or a permutation has none, and is told as an all-to-all."""


def chakra_files(
    device_groups: Sequence[TracedDevices], meshes: Sequence[Mesh]
) -> Iterator[tuple[str, bytes]]:
    """Yield file names and contents: ``trace.RANK.et``, and ``comm_group.json``."""
    tasks = [lane.tasks() for lane in device_groups]
    ends = _Ends(meshes, tasks)
    groups = _Groups(meshes)
    for lane, lane_tasks in zip(device_groups, tasks, strict=True):
        for device in lane.devices:
            yield f"trace.{device}.et", _file(lane_tasks, device, ends, groups)
    yield "comm_group.json", (json.dumps(groups.table, indent=1) + "\n").encode()


class _Ends:
    """Partners and sizes of messages, the same at both ends.

    Parameters
    ----------
    meshes : sequence of Mesh
    tasks : sequence of sequences of Task
        The tasks of all lanes.
    """

    def __init__(self, meshes: Sequence[Mesh], tasks: Sequence[Sequence[Task]]) -> None:
        self._meshes = meshes
        self._sizes: dict[tuple[int, int, int], int] = {}
        most = 1
        for task in (
            task for lane_tasks in tasks for task in lane_tasks if task.kind in ("send", "recv")
        ):
            partners = self._of(task.kind, task.mesh, task.peer)
            count = max(map(len, partners.values()), default=1)
            key = self._key(task)
            self._sizes[key] = max(self._sizes.get(key, 1), -(-task.bytes // count))
            most = max(most, count)
        self.most = most

    @memoized
    def _of(self, kind: str, mesh: int, peer: int) -> dict[int, list[int]]:
        """Return the partners on another mesh of each device of the mesh of a task."""
        source, target = (self._meshes[number].device_ids for number in (mesh, peer))
        if kind == "send":
            return lists_by_key(pair_up(source, target))
        return lists_by_key((device, sender) for sender, device in pair_up(target, source))

    def _key(self, task: Task) -> tuple[int, int, int]:
        ends = (task.mesh, task.peer)
        return (task.tag, *(ends if task.kind == "send" else ends[::-1]))

    def partners(self, task: Task, device: int) -> list[int]:
        """Return the devices that a device sends to, or that send to it."""
        return self._of(task.kind, task.mesh, task.peer).get(device, [])

    def size(self, task: Task) -> int:
        """Return the bytes for each partner."""
        return self._sizes[self._key(task)]


class _Groups:
    """Names of groups of devices, which are numbers from 1 on."""

    def __init__(self, meshes: Sequence[Mesh]) -> None:
        self._meshes = meshes
        self._names: dict[tuple[int, ...], str] = {}

    def of(self, task: Task, device: int) -> str:
        """Return the group of a device."""
        return self._of_devices(task.mesh, task.axes)[device]

    @memoized
    def _of_devices(self, mesh: int, axes: tuple[int, ...]) -> dict[int, str]:
        return {
            member: self._names.setdefault(group, str(len(self._names) + 1))
            for group in self._meshes[mesh].groups(axes)
            for member in group
        }

    @property
    def table(self) -> dict[str, list[int]]:
        """Return the devices by name."""
        return {name: list(group) for group, name in self._names.items()}

    def of_device(self, device: int) -> list[dict[str, object]]:
        """Return the groups of a device, as PyTorch's traces tell them."""
        return [
            {"pg_name": name, "backend_config": "nccl", "group_size": len(group), "ranks": group}
            for group, name in self._names.items()
            if device in group
        ]


def _delimited(message: bytes) -> bytes:
    return varint(len(message)) + message


def _attribute(name: str, field: int, value: int | str) -> bytes:
    """Return a field of ``Node.attr``; ``field`` is that of the value's type."""
    content = block(field, value) if isinstance(value, str) else integer(field, value)
    return block(10, block(1, name) + content)


_INT32, _INT64, _UINT64, _BOOL, _STRING = 7, 9, 13, 27, 29


def _file(tasks: Sequence[Task], device: int, ends: _Ends, groups: _Groups) -> bytes:
    """Return all nodes of a device. A message to several partners is a node for each."""
    nodes: list[bytes] = []
    spent_ps: dict[bool, int] = {True: 0, False: 0}
    for position, task in enumerate(tasks):
        first = 1 + position * ends.most
        computes = task.kind == "compute"
        before, spent_ps[computes] = spent_ps[computes], spent_ps[computes] + task.duration_ps
        micros = spent_ps[computes] // 1_000_000 - before // 1_000_000
        links = [
            b"".join(integer(field, 1 + other * ends.most) for other in others)
            for field, others in ((5, task.data), (4, task.after))
        ]
        tail = b"".join(reversed(links)) + integer(7, micros) + _attribute("is_cpu_op", _BOOL, 0)
        tail += _attribute("duration_ps", _UINT64, task.duration_ps)
        nodes += _nodes(task, device, first, tail, ends, groups)
    head = block(1, VERSION)
    attribute = block(8, block(1, json.dumps(groups.of_device(device))))
    init = integer(1, 0) + block(2, "## process_group:init ##") + integer(3, METADATA) + attribute
    return b"".join(map(_delimited, (head, init, *nodes)))


def _nodes(
    task: Task, device: int, first: int, tail: bytes, ends: _Ends, groups: _Groups
) -> Iterator[bytes]:
    """Yield the node of a task, behind those of further partners, which it waits for."""
    name = block(2, task.name)
    if task.kind in ("send", "recv"):
        partners = ends.partners(task, device)
        kind = SEND if task.kind == "send" else RECV
        more = b"".join(integer(5, first + k) for k in range(1, len(partners)))
        for number, partner in reversed(list(enumerate(partners))):
            start = integer(1, first + number) + name + integer(3, kind) + (b"" if number else more)
            pair = (device, partner) if task.kind == "send" else (partner, device)
            facts = _attribute("comm_size", _INT64, ends.size(task))
            facts += _attribute("comm_src", _INT32, pair[0])
            facts += _attribute("comm_dst", _INT32, pair[1])
            yield start + tail + facts + _attribute("comm_tag", _INT32, task.tag)
        return
    kind = _ON_DEVICE.get(task.kind, COLLECTIVE)
    if kind == COLLECTIVE:
        facts = _attribute("comm_type", _INT64, TYPES.get(task.kind, TYPES["all_to_all"]))
        facts += _attribute("comm_size", _INT64, task.bytes)
        facts += _attribute("pg_name", _STRING, groups.of(task, device))
    else:
        facts = _attribute("num_ops", _INT64, task.flops) if kind == COMPUTE else b""
        facts += _attribute("tensor_size", _UINT64, task.bytes)
    yield integer(1, first) + name + integer(3, kind) + tail + facts
