# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the mesh axes along which groups of ranks communicate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm_distir.core.collectives import Transfer

Groups = tuple[tuple[int, ...], ...]
MeshKey = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and device ids of a mesh."""


@dataclass(frozen=True)
class AxisTable:
    """Names of meshes and of the mesh axes of rank groups.

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
        """Return the words for the axes of rank groups: of the first mesh that has such groups."""
        for number in range(len(self.mesh_names)):
            if (number, groups) in self.axes:
                return self.axes[number, groups]
        return f"groups {[list(g) for g in groups]}"

    def transfer_name(self, transfer: Transfer) -> str:
        """Return ``"mesh0->mesh1"``."""
        names = dict(zip(self.meshes, self.mesh_names))
        return "->".join(names.get(side[:2], "?") for side in (transfer.src, transfer.dst))

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
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
