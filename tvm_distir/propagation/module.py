# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A module as propagation sees it: its functions as graphs on their meshes, and the axes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, relax

from ..ir import is_private, mesh_axes, mesh_shape, meshes, relax_functions
from .graph import Axis, Graph, ModuleTypes, Placer


@dataclass(frozen=True)
class PlacedModule:
    """The functions of a module, private ones once per meshes that they are called on.

    Attributes
    ----------
    axes : tuple of Axis
    entries : mapping of str to str
        Per public function, the key of its graph.
    graphs : mapping of str to Graph
    order : sequence of str
        Keys of the graphs, callees first.
    """

    axes: tuple[Axis, ...]
    entries: Mapping[str, str]
    graphs: Mapping[str, Graph]
    order: Sequence[str]

    @classmethod
    def of(cls, mod: ir.IRModule, axes: Sequence[Axis] | None = None) -> PlacedModule:
        """Read a module; the axes are those of its meshes unless they are given."""
        placer = Placer(ModuleTypes(mod))
        entries = {
            str(gv.name_hint): placer.place(str(gv.name_hint))
            for gv, fn in relax_functions(mod)
            if isinstance(fn, relax.Function) and not is_private(fn)
        }
        found = module_axes(mod) if axes is None else tuple(axes)
        return cls(found, entries, placer.graphs, placer.order)

    @functools.cached_property
    def largest(self) -> tuple[int, int]:
        """FLOPs and bytes of the largest op."""
        rules = [n.rule for g in self.graphs.values() for n in g.nodes if n.rule is not None]
        return (
            max((r.flops for r in rules), default=0),
            max((sum(r.in_bytes + r.out_bytes) for r in rules), default=0),
        )


def module_axes(mod: ir.IRModule) -> tuple[Axis, ...]:
    """All axes of all meshes of a module."""
    names = mesh_axes(mod)
    return tuple(
        Axis(i, j, size, names[i][j])
        for i, mesh in enumerate(meshes(mod))
        for j, size in enumerate(mesh_shape(mesh))
    )
