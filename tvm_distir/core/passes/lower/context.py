# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The context that the lowering of all functions of a module shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import ir
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.mesh import MeshKey, mesh_key
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.ir.views.tilings import (
    family,
)
from tvm_distir.core.ops.class_memo import ClassMemo, class_memo
from tvm_distir.core.rewriting.repeated_bindings import Templates
from tvm_distir.support import LoweringError, memoized


@dataclass
class Context:
    """The context that all functions of a module share.

    Attributes
    ----------
    mod : IRModule
        The module, at level 4.
    meshes : list of DeviceMesh
        The meshes of the module.
    callees : dict of GlobalVar to GlobalVar
        Private functions lowered so far, and what takes their place.
    known : list of (handle, position)
        Mesh objects met so far, for speed only.
    prim_funcs : dict
        PrimFuncs cut to local shapes, see :mod:`.local.sharding`.
    shardings : ClassMemo
        The :class:`~.CallSharding` of the calls of each class.
    worked_on : dict of str to list of int
        The meshes that functions work on, of those that were looked at.
    keys : list of mesh keys
        The key of each mesh.
    firsts : list of int
        The number of the first view of each mesh, which stands for all of them.
    """

    mod: ir.IRModule
    meshes: list[DeviceMesh]
    callees: dict[ir.GlobalVar, ir.GlobalVar] = field(default_factory=dict)
    known: list[tuple[int, int]] = field(default_factory=list)
    prim_funcs: dict[Any, Any] = field(default_factory=dict)
    shardings: ClassMemo = field(default_factory=lambda: class_memo("forms"))
    worked_on: dict[str, list[int]] = field(default_factory=dict)
    keys: list[MeshKey] = field(init=False)
    firsts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [mesh_key(mesh) for mesh in self.meshes]
        families = [family(mesh).family for mesh in self.meshes]
        self.firsts = [families.index(x) for x in families]

    @memoized
    def templates_on(self, number: int) -> Templates:
        """Return the local forms for a mesh."""
        return Templates(class_memo(("local forms", self.keys[number])), class_memo("states"))

    @memoized
    def local_types_on(self, number: int) -> dict[int, ir.Type]:
        """Return the types of a device's parts on a mesh, those of all modules.

        They go by the number of the tensor type at level 4, ``Reading.types``.
        """
        return class_memo(("local types", self.keys[number]))

    def mesh_number(self, mesh: DeviceMesh) -> int:
        """Return the position in the module of the first view of a mesh."""
        return self.firsts[self.view_number(mesh)]

    def view_number(self, mesh: DeviceMesh) -> int:
        """Return the position of a mesh in the module."""
        for other, number in self.known:
            if other == mesh.__chandle__():
                return number
        key = mesh_key(mesh)
        if key not in self.keys:
            problem = f"a mesh of shape {key[0]} is not among the module's global_infos"
            remedy = 'Add it: mod.update_global_info("mesh", meshes).'
            raise LoweringError("DIST0503", problem, remedy=remedy)
        self.known.append((mesh.__chandle__(), self.keys.index(key)))
        return self.known[-1][1]

    def meshes_of(self, ty: ir.Type) -> list[int]:
        """Return the sorted meshes of the DTensors of a type."""
        meshes = {self.mesh_number(t.device_mesh) for t in flat_types(ty) if type(t) is DTensorType}
        return sorted(meshes)
