# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The meshes of a module, and the views of them that passes add."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tvm import ir
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.mesh import (
    AXES_ATTR,
    MESH_INFO,
    NAMES_ATTR,
    mesh_axes,
    mesh_names,
    meshes,
    same_mesh,
)

from .tilings import MOST_ORDERED_AXES, Axes, family


class ModuleViews:
    """The meshes of a module, and the views that a pass adds to them.

    Parameters
    ----------
    mod : IRModule
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self._mod, self._meshes = mod, meshes(mod)
        self._first_new = len(self._meshes)

    def declared(self, mesh: DeviceMesh) -> DeviceMesh:
        """Return the module's mesh that is the same, which is added where there is none."""
        for other in self._meshes:
            if same_mesh(mesh, other):
                return other
        self._meshes.append(mesh)
        return mesh

    def orders(self, *preferred: DeviceMesh) -> tuple[Axes, ...]:
        """Return the orders of axes of the views of a mesh, first those of some of its views.

        Of a mesh with at most three axes all orders; of others those that the module has.
        """
        base = family(preferred[0]).family
        views = [family(mesh) for mesh in (*preferred, *self._meshes)]
        known = [view.axes for view in views if view.family == base]
        count = len(base[0])
        every = itertools.permutations(range(count)) if count <= MOST_ORDERED_AXES else ()
        return tuple(dict.fromkeys([*known, *every]))

    def module(self, functions: Mapping[ir.GlobalVar, ir.Expr]) -> ir.IRModule:
        """Return the module with other functions, which declares the added views."""
        mod = self._mod
        if len(self._meshes) == self._first_new:
            return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        attrs, infos = dict(mod.attrs or {}), dict(mod.global_infos)
        axes, names = mesh_axes(mod), mesh_names(mod)
        known = [family(mesh) for mesh in self._meshes]
        for view in known[self._first_new :]:
            number = next(i for i, x in enumerate(known) if x.family == view.family)
            axes.append([axes[number][known[number].axes.index(a)] for a in view.axes])
            names.append("_".join([names[number], *axes[-1]]))
        infos[MESH_INFO] = self._meshes
        attrs[AXES_ATTR] = axes
        if NAMES_ATTR in attrs:
            attrs[NAMES_ATTR] = names
        return ir.IRModule(
            functions, attrs=ir.make_node("ir.DictAttrs", **attrs), global_infos=infos
        )
