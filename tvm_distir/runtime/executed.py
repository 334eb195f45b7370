# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a fabric executed, as counts per mesh axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..ir.placement import local_shape
from ..native.ccl import Executed
from .counts import CollectiveCount, Counter
from .layout import Entry
from .tiles import Transfer

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class AxisTable:
    """Names of meshes, and of the mesh axes along which rank groups lie.

    Attributes
    ----------
    mesh_names : tuple of str
    axes : mapping of (mesh number, groups) to str
        Axis names, joined by ``","``.
    """

    mesh_names: tuple[str, ...]
    axes: Mapping[tuple[int, Groups], str]

    def name(self, mesh: int, groups: Groups) -> str:
        """Words for the axes of rank groups."""
        return self.axes.get((mesh, groups), f"groups {[list(g) for g in groups]}")

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "mesh_names": list(self.mesh_names),
            "axes": [
                {"mesh": mesh, "groups": [list(g) for g in groups], "name": name}
                for (mesh, groups), name in self.axes.items()
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AxisTable:
        """Read the JSON form."""
        axes = {}
        for item in data["axes"]:
            groups = tuple(tuple(int(r) for r in g) for g in item["groups"])
            axes[int(item["mesh"]), groups] = str(item["name"])
        return cls(tuple(str(n) for n in data["mesh_names"]), axes)


class Executions(Protocol):
    """What counting needs of a fabric whose run has ended."""

    def executed(self, rank: int) -> list[Executed]:
        """Collectives a rank executed."""
        ...

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Transfers a rank received, each with the bytes of one element."""
        ...


def _count_transfer(counter: Counter, axes: str, transfer: Transfer, element_bytes: int) -> None:
    part = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
    moved = sum(tile.elements for tile in transfer.tiles() if tile.src != tile.dst)
    result_bytes = math.prod(part) * element_bytes
    counter.transfer(axes, len(transfer.dst[1]), result_bytes, moved * element_bytes)


def count_executed(
    table: AxisTable, found: Sequence[Entry], fabric: Executions
) -> tuple[CollectiveCount, ...]:
    """Counts of a run from what the first rank of every mesh executed.

    Parameters
    ----------
    table : AxisTable
    found : sequence of Entry
        The entry functions.
    fabric : Executions
        Of the run, which has ended.
    """
    counter = Counter()
    mesh_of = {tuple(entry.ranks): table.mesh_names[entry.mesh_index] for entry in found}
    for entry in found:
        number, rank = entry.mesh_index, entry.ranks[0]
        for done in fabric.executed(rank):
            axes = table.name(number, done.groups)
            for _ in range(done.count):
                counter.collective(done.kind, axes, len(done.groups[0]), done.result_bytes)
        for transfer, element_bytes in fabric.received(rank):
            ends = (transfer.src[1], transfer.dst[1])
            axes = "->".join(mesh_of.get(devices, "?") for devices in ends)
            _count_transfer(counter, axes, transfer, element_bytes)
    return counter.counts()
