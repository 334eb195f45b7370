# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents a module for propagation: graphs of its functions on their meshes, and axes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, relax

from tvm_distir.core.ir.attributes.keys import REPEAT_ATTR
from tvm_distir.core.ir.mesh import mesh_axes, mesh_shape, meshes
from tvm_distir.core.ir.types import is_private, relax_functions
from tvm_distir.core.propagation.graph.graph import Axis, Graph
from tvm_distir.core.propagation.graph.meshes import MeshAssignment
from tvm_distir.core.propagation.graph.types import ModuleTypes


@dataclass(frozen=True)
class PlacedModule:
    """Functions of a module; private functions once per meshes that they are called on.

    Attributes
    ----------
    axes : tuple of Axis
    entries : mapping of str to str
        The key of the graph of each public function.
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
        placer = MeshAssignment(ModuleTypes(mod))
        entries = {
            str(gv.name_hint): placer.unrolled_key(str(gv.name_hint))
            for gv, fn in relax_functions(mod)
            if isinstance(fn, relax.Function) and not is_private(fn)
        }
        all_axes = module_axes(mod) if axes is None else tuple(axes)
        _repeat(placer.graphs, placer.order)
        return cls(all_axes, entries, placer.graphs, placer.order)

    @functools.cached_property
    def largest(self) -> tuple[int, int]:
        """Return FLOPs and bytes of the largest op, times how often a step runs it."""
        rules = [
            (g.repeat, n.rule) for g in self.graphs.values() for n in g.nodes if n.rule is not None
        ]
        return (
            max((n * r.flops for n, r in rules), default=0),
            max((n * sum(r.in_bytes + r.out_bytes) for n, r in rules), default=0),
        )


def _repeat(graphs: Mapping[str, Graph], order: Sequence[str]) -> None:
    """Record on graphs how often a step runs them: as often as the function that calls them."""
    for key in reversed(order):
        graph = graphs[key]
        attrs = graph.fn.attrs
        if attrs and REPEAT_ATTR in attrs:
            graph.repeat = max(graph.repeat, int(attrs[REPEAT_ATTR]))
        for k in graph.calls:
            callee = graphs[graph.nodes[k].callee]
            callee.repeat = max(callee.repeat, graph.repeat)
    for key in order:
        graph = graphs[key]
        often = {k: graphs[graph.nodes[k].callee].repeat for k in graph.calls}
        graph.repeats = {k: n for k, n in often.items() if n > 1}
        if graph.repeats:
            graph.repeats.update(_between(graph))


def _between(graph: Graph) -> dict[int, int]:
    """Return how often a step runs the annotations between repeated calls."""
    nodes, repeats = graph.nodes, graph.repeats
    pins = [k for k, node in enumerate(nodes) if node.kind == "pin"]
    writes, read = dict(repeats), dict(repeats)
    for k in pins:
        writes[k] = writes.get(graph.producer[nodes[k].operands[0]][0], 1)
    for k in reversed(pins):
        read[k] = max(
            (read.get(reader, 1) for reader, _ in graph.uses[nodes[k].results[0]]), default=1
        )
    return {k: n for k in pins if (n := min(writes[k], read[k])) > 1}


def module_axes(mod: ir.IRModule) -> tuple[Axis, ...]:
    """Return all axes of all meshes of a module."""
    names = mesh_axes(mod)
    return tuple(
        Axis(i, j, size, names[i][j])
        for i, mesh in enumerate(meshes(mod))
        for j, size in enumerate(mesh_shape(mesh))
    )
