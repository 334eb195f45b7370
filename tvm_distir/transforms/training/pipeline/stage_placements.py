# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the placements of the parameters and results of stages, and the meshes of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    mesh_devices,
    mesh_shape,
    parse_placement,
    same_mesh,
    unpack,
)
from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.ir.views import (
    Axes,
    order_of,
    view_of,
)
from tvm_distir.core.passes import described_mesh, port_mesh
from tvm_distir.support import MeshError


@dataclass(frozen=True)
class IoPlacement:
    """Entry of ``dist.io``.

    Attributes
    ----------
    shape : tuple of int
        Whole.
    dtype : str
    placement : str
    order : tuple of int
        The axes of the stage's mesh, in the order of the view on which the entry is placed.
    index_range : tuple of int
        The range of its indices, as ``dist.io`` has it; empty where it holds none.
    """

    shape: tuple[int, ...]
    dtype: str
    placement: str
    order: Axes
    index_range: tuple[int, ...] = field(default=(), compare=False)

    def item(self, index: int, name: str, mesh: DeviceMesh) -> dict[str, Any]:
        """Return the entry as an item of the ``dist.io`` of an entry on a mesh."""
        item = {
            "index": index,
            "name": name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "placement": self.placement,
        }
        view = self.view(mesh)
        if not same_mesh(view, mesh):
            item["mesh"] = described_mesh(view)
        return {**item, "index_range": list(self.index_range)} if self.index_range else item

    def view(self, mesh: DeviceMesh) -> DeviceMesh:
        """Return the view of the stage's mesh on which the entry is placed."""
        return view_of(mesh, self.order)

    def axes(self, mesh: DeviceMesh) -> tuple[Axes, ...]:
        """Return the axes of the stage's mesh that divide each dim, from major to minor."""
        sizes, labels = mesh_shape(mesh), parse_placement(self.placement)
        divided = [(a, d) for a, d in zip(self.order, labels, strict=True) if sizes[a] > 1]
        return tuple(tuple(a for a, d in divided if d == k) for k in range(len(self.shape)))

    def parts(self, dim: int, mesh: DeviceMesh) -> int:
        """Return the number of shards of a dim."""
        labels = parse_placement(self.placement)
        sizes = mesh_shape(self.view(mesh))
        return math.prod(n for n, label in zip(sizes, labels, strict=True) if label == dim)


@dataclass(frozen=True)
class StageInterface:
    """Placements of all parameters and results of a stage's function.

    Attributes
    ----------
    mesh : int
        Number of its mesh in the module.
    inputs, outputs : dict of int to IoPlacement
        The entries by position.
    """

    mesh: int
    inputs: dict[int, IoPlacement]
    outputs: dict[int, IoPlacement]


def read_ports(fn: relax.Function, known: Sequence[DeviceMesh]) -> StageInterface:
    """Read ``dist.io`` of a stage's function in a module with some meshes."""
    io = fn.attrs[IO_ATTR]
    mesh = known[int(io["mesh"])]

    def placements(side: str) -> dict[int, IoPlacement]:
        return {
            int(item["index"]): IoPlacement(
                tuple(map(int, unpack(item["shape"]))),
                str(item["dtype"]),
                str(item["placement"]),
                order_of(port_mesh(item, mesh), mesh),
                tuple(int(n) for n in item["index_range"]) if "index_range" in item else (),
            )
            for item in unpack(io[side])
        }

    return StageInterface(int(io["mesh"]), placements("inputs"), placements("outputs"))


def rank_meshes(
    known: Sequence[DeviceMesh], of_rank: Sequence[int], devices: Sequence[Sequence[int]]
) -> list[DeviceMesh]:
    """Return the meshes of the ranks, in the shape that the module has for each.

    Parameters
    ----------
    known : sequence of DeviceMesh
        The meshes of the module.
    of_rank : sequence of int
        Number of each rank's mesh among these.
    devices : sequence of sequence of int
        The device ids of each rank, row-major; empty: a mesh that a single rank has stays where it
        is, and the ranks of another mesh follow each other from its first device on.

    Raises
    ------
    MeshError
        DIST0202 if the ids do not fit, or two ranks have a device.
    """
    starts = {k: int(mesh_devices(known[k]).ravel()[0]) for k in of_rank}
    meshes, owner = [], dict[int, int]()
    for rank, number in enumerate(of_rank):
        shape, local_ids = mesh_shape(known[number]), mesh_devices(known[number]).ravel().tolist()
        count = math.prod(shape)
        ids = (
            local_ids
            if of_rank.count(number) == 1
            else list(range(starts[number], starts[number] + count))
        )
        ids = list(devices[rank]) if devices else ids
        if len(ids) != count:
            problem = f"{len(ids)} devices for a mesh of {count}"
            remedy = "Give an id for each device of the stage's mesh."
            raise MeshError("DIST0202", problem, location=f"schedule/devices/{rank}", remedy=remedy)
        twice = next((i for i in ids if i in owner), None)
        if twice is not None:
            problem = f"the ranks {owner[twice]} and {rank} both have device {twice}"
            remedy = 'Give the meshes different devices, or "devices" for each rank.'
            raise MeshError("DIST0202", problem, location="schedule", remedy=remedy)
        owner.update(dict.fromkeys(ids, rank))
        starts[number] += count
        meshes.append(known[number] if local_ids == ids else DeviceMesh(list(shape), ids))
    return meshes
