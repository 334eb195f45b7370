# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a fabric executed, as counts per mesh axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm_distir.core import Transfer, local_shape
from tvm_distir.execution.runtime.collectives.native_library import Executed

from .counts import CollectiveCount, CollectiveCounter
from .layout import EntryFunction

Groups = tuple[tuple[int, ...], ...]
MeshKey = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and device ids of a mesh."""


@dataclass(frozen=True)
class AxisTable:
    """Names of meshes, and of the mesh axes along which rank groups lie.

    Attributes
    ----------
    mesh_names : tuple of str
    axes : mapping of (mesh number, groups) to str
        Axis names, joined by ``","``.
    meshes : tuple of (shape, device ids)
    """

    mesh_names: tuple[str, ...]
    axes: Mapping[tuple[int, Groups], str]
    meshes: tuple[MeshKey, ...] = ()

    def name(self, groups: Groups) -> str:
        """Words for the axes of rank groups: of the first mesh that has such groups."""
        for number in range(len(self.mesh_names)):
            if (number, groups) in self.axes:
                return self.axes[number, groups]
        return f"groups {[list(g) for g in groups]}"

    def transfer_name(self, transfer: Transfer) -> str:
        """``"mesh0->mesh1"``."""
        names = dict(zip(self.meshes, self.mesh_names))
        return "->".join(names.get(side[:2], "?") for side in (transfer.src, transfer.dst))

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "mesh_names": list(self.mesh_names),
            "axes": [
                {"mesh": mesh, "groups": [list(g) for g in groups], "name": name}
                for (mesh, groups), name in self.axes.items()
            ],
            "meshes": [{"shape": list(s), "device_ids": list(d)} for s, d in self.meshes],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AxisTable:
        """Read the JSON form."""
        axes = {}
        for item in data["axes"]:
            groups = tuple(tuple(int(r) for r in g) for g in item["groups"])
            axes[int(item["mesh"]), groups] = str(item["name"])
        meshes = tuple(
            (tuple(int(n) for n in m["shape"]), tuple(int(d) for d in m["device_ids"]))
            for m in data.get("meshes", [])
        )
        return cls(tuple(str(n) for n in data["mesh_names"]), axes, meshes)


class Executions(Protocol):
    """What counting needs of a fabric whose run has ended."""

    def executed(self, rank: int) -> list[Executed]:
        """Collectives a rank executed."""
        ...

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Transfers a rank received, each with the bytes of one element."""
        ...


def count_transfer(
    counter: CollectiveCounter, axes: str, transfer: Transfer, element_bytes: int
) -> None:
    """Count one execution of a transfer."""
    part = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
    moved = sum(tile.elements for tile in transfer.tiles() if tile.src != tile.dst)
    result_bytes = math.prod(part) * element_bytes
    counter.transfer(axes, len(transfer.dst[1]), result_bytes, moved * element_bytes)


def count_executed(
    table: AxisTable, found: Sequence[EntryFunction], fabric: Executions
) -> tuple[CollectiveCount, ...]:
    """Counts of a run from what the first rank of every mesh executed.

    Parameters
    ----------
    table : AxisTable
    found : sequence of EntryFunction
        The entry functions.
    fabric : Executions
        Of the run, which has ended.
    """
    counter = CollectiveCounter()
    for entry in found:
        # Entries may share a mesh: what runs on it is counted by that of its first device.
        rank = entry.ranks[0]
        for done in fabric.executed(rank):
            if done.groups[0][0] not in entry.ranks:
                continue
            axes = table.name(done.groups)
            for _ in range(done.count):
                counter.collective(done.kind, axes, len(done.groups[0]), done.result_bytes)
        for transfer, element_bytes in fabric.received(rank):
            if transfer.dst[1][0] in entry.ranks:
                axes = table.transfer_name(transfer)
                count_transfer(counter, axes, transfer, element_bytes)
    return counter.counts()
