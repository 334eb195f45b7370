# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the mesh axes of the rank groups of a module's collectives."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.ir import (
    groups_by_axes,
    mesh_axes,
    mesh_key,
    mesh_names,
    meshes,
)
from tvm_distir.core.ir.views import first_views

from .axis_table import AxisTable, Groups


def axes_of_groups(mod: ir.IRModule) -> dict[tuple[int, Groups], tuple[int, ...]]:
    """Return the mesh axes by mesh number and rank groups.

    Where several sets of axes have the same groups (an axis of a single device changes nothing), it
    is the smallest set, and of these the first.
    """
    table: dict[tuple[int, Groups], tuple[int, ...]] = {}
    for number, mesh in enumerate(meshes(mod)):
        for axes, groups in groups_by_axes(mesh):
            table.setdefault((number, tuple(map(tuple, groups))), axes)
    return table


def axis_table(mod: ir.IRModule) -> AxisTable:
    """Return the names of meshes and axes, for counts; views name axes as the first of them."""
    names, keys = mesh_axes(mod), tuple(mesh_key(mesh) for mesh in meshes(mod))
    ranks = [first_views(meshes(mod))[key][1] for key in keys]
    axes = {
        (n, groups): ",".join(names[n][a] for a in sorted(chosen, key=ranks[n].__getitem__))
        for (n, groups), chosen in axes_of_groups(mod).items()
    }
    return AxisTable(tuple(mesh_names(mod)), axes, keys)
