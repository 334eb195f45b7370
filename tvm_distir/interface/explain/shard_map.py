# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Draw which device, on which node, holds which part of a value (``td.visualize``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir import (
    P,
    labels_of,
    mesh_index,
    mesh_shape,
    meshes,
    placement_text,
    relax_functions,
    shard_counts,
    static_shape,
)
from tvm_distir.core.ir.views import first_view
from tvm_distir.core.plan import MAIN, MeshSpec, PartitionSpec, Plan, plain_name, plan_of_meshes
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.execution import ShardedArray
from tvm_distir.hardware import System
from tvm_distir.interface.ir_display import partial_states
from tvm_distir.interface.ordered_labels import ordered_words
from tvm_distir.interface.report.pages import render
from tvm_distir.support import PropagationError, UsageError, lists_by_key, nearest
from tvm_distir.support.display import units

from .picture import HeldShard, bounds_text, ids_text, parts, shard_lines, shown_numbers

Bounds = tuple[tuple[int, int], ...]
_COLOURS = ("#cfe3f7", "#fbe0c4", "#d5ecd0", "#f6d2d5", "#e2d7ee", "#eee3b8", "#cdebe9", "#e3e3e3")
"""Backgrounds of the devices of a node, in turn."""


@dataclass(frozen=True)
class ShardMap:
    """The shards of a value, with the devices and nodes that hold them.

    Attributes
    ----------
    title : str
        The value, its shape and its placement.
    shards : tuple of HeldShard
        In row-major order of their positions.
    counts : tuple of int
        The number of shards of each dim.
    devices_per_node : int, optional
        None where the system is not known.
    """

    title: str
    shards: tuple[HeldShard, ...]
    counts: tuple[int, ...]
    devices_per_node: int | None = None

    @property
    def nodes(self) -> dict[int, tuple[int, ...]]:
        """Return the devices that hold parts by node; empty where the system is not known."""
        result: dict[int, tuple[int, ...]] = {}
        if self.devices_per_node is not None:
            for device in sorted({device for shard in self.shards for device in shard.devices}):
                node = device // self.devices_per_node
                result[node] = (*result.get(node, ()), device)
        return result

    def __str__(self) -> str:
        nodes = [f"node {node}: devices {ids_text(ids)}" for node, ids in self.nodes.items()]
        lines = [self.title, *shard_lines(self.shards, self.counts), *nodes]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """Return a grid of the shards, coloured by node."""
        columns = self.counts[-1] if self.counts else 1
        by_row: dict[tuple[int, ...], dict[int, HeldShard]] = {}
        for shard in self.shards:
            column = shard.position[-1] if shard.position else 0
            by_row.setdefault(shard.position[:-1], {})[column] = shard
        across, rows = shown_numbers(columns), list(by_row.values())
        cells = [
            [self._cell(None if c is None else row.get(c)) for c in across]
            for row in (rows[i] if i is not None else {} for i in shown_numbers(len(rows)))
        ]
        values = {"title": self.title, "rows": cells, "nodes": self.nodes, "colours": _COLOURS}
        return render("shard_map.html.j2", **values)

    def _cell(self, shard: HeldShard | None) -> tuple[str, dict[int, str]] | None:
        """Return the index ranges of a shard and its devices by node."""
        if shard is None:
            return None
        box = ", ".join(bounds_text(shard, dim, self.counts) for dim in range(len(self.counts)))
        by_node = lists_by_key((self._node(device), device) for device in shard.devices)
        return box, {node: ids_text(ids) for node, ids in by_node.items()}

    def _node(self, device: int) -> int:
        return 0 if self.devices_per_node is None else device // self.devices_per_node


def visualize(
    value: ShardedArray | ir.IRModule | Sequence[int],
    name: str | PartitionSpec | None = None,
    mesh: Mapping[str, int] | None = None,
    *,
    system: System | str | None = None,
) -> ShardMap:
    """Draw which device holds which part of a value, as text and in colours in notebooks.

    Parameters
    ----------
    value : ShardedArray, IRModule or shape
        An output of :func:`.registry.run` with ``outputs="sharded"``; a module at level 3 or 4; or
        the shape of a tensor.
    name : str or PartitionSpec
        Of a module, the value: ``variable``, or ``function/variable``. Of a shape, the placement:
        ``"S[0], R"`` or ``td.P("dp", None)``.
    mesh : mapping of str to int
        Of a shape, the axes of the mesh.
    system : System or str, optional
        Its nodes are shown.

    Returns
    -------
    ShardMap

    Raises
    ------
    PropagationError
        DIST0430 the module has no such distributed value.
    UsageError
        DIST0151 the arguments do not fit.
    MeshError
        The placement cannot be read, or does not fit.

    Examples
    --------
    >>> print(td.visualize((8, 6), td.P("dp", "tp"), {"dp": 2, "tp": 2}))
    8 x 6, S[0], S[1] on mesh0 (dp=2, tp=2)
        | 0:3 | 3:6
    ----+-----+----
    0:4 | 0   | 1
    4:8 | 2   | 3
    """
    resolved = System.resolve(system)
    nodes = None if resolved is None else resolved.intra_node.devices_per_node
    if isinstance(value, ShardedArray):
        return _of_array(value, nodes)
    if isinstance(value, ir.IRModule):
        return _of_module(value, str(name), nodes)
    if name is None or mesh is None:
        raise UsageError(
            "DIST0151", "a shape needs a placement and a mesh",
            location="visualize", remedy='Write td.visualize((8, 6), td.P("dp"), {"dp": 2}).',
        )  # fmt: skip
    plan = Plan(mesh=mesh, rules={"value": name})
    labels, spec = plan.rules[0].closed_labels, plan.meshes[0]
    title = f"{units.shape(tuple(value))}, {_on_mesh(placement_text(labels), spec)}"
    shards = parts(value, labels, spec.device_mesh())
    return ShardMap(title, tuple(shards), _counts(labels, spec.shape, len(value)), nodes)


def _on_mesh(placement: str, mesh: MeshSpec) -> str:
    axes = ", ".join(f"{axis}={size}" for axis, size in mesh.axes.items())
    return f"{placement} on {mesh.name} ({axes})"


def _counts(labels: Sequence[int], sizes: Sequence[int], ndim: int) -> tuple[int, ...]:
    return tuple(shard_counts(labels, sizes, ndim))


def _of_array(array: ShardedArray, nodes: int | None) -> ShardMap:
    """Return the map of an array by the boxes that its ranks hold."""
    if array.shape is None or set(array.boxes) != set(array.parts):
        raise UsageError(
            "DIST0151", "the index range of each shard is unknown",
            location="visualize", remedy='Pass an output of td.run with outputs="sharded".',
        )  # fmt: skip
    starts = [sorted({box[dim] for box in array.boxes.values()}) for dim in range(len(array.shape))]
    devices = lists_by_key((tuple(box), rank) for rank, box in array.boxes.items())
    shards = [
        HeldShard(
            tuple(starts[dim].index(bound) for dim, bound in enumerate(box)),
            box,
            tuple(sorted(ranks)),
        )
        for box, ranks in devices.items()
    ]
    shards.sort(key=lambda shard: shard.position)
    counts = tuple(len(slices) for slices in starts)
    return ShardMap(f"{units.shape(array.shape)}, sharded array", tuple(shards), counts, nodes)


def _of_module(mod: ir.IRModule, name: str, nodes: int | None) -> ShardMap:
    """Return the map of a distributed value of a module."""
    function, _, variable = name.rpartition("/")
    values: dict[str, Any] = {}
    for gv, fn in relax_functions(mod):
        for var in (*fn.params, *(binding.var for binding in all_bindings(fn.body))):
            if isinstance(var.ty, DTensorType):
                values.setdefault(f"{gv.name_hint}/{plain_name(str(var.name))}", var)
    key = f"{function or MAIN}/{plain_name(variable)}"
    if key not in values:
        raise PropagationError(
            "DIST0430", f'the module has no distributed value "{key}"',
            location="visualize", remedy=nearest(key, values),
        )  # fmt: skip
    ty = values[key].ty
    mesh = first_view(ty.device_mesh, meshes(mod))
    spec = plan_of_meshes(mod).meshes[mesh_index(mod, mesh)]
    labels, shape = list(labels_of(ty.placement)), static_shape(ty)
    state = partial_states(mod).get(function or MAIN)
    for axis in state.of(values[key])[0] if state is not None else ():
        labels[axis] = P
    if shape is None:
        raise PropagationError(
            "DIST0430", f'the shape of "{key}" is unknown',
            location="visualize", remedy="Name a value with a known shape.",
        )  # fmt: skip
    words = ", ".join(ordered_words(labels, ty.device_mesh, mesh, spec.axis_names))
    title = f"{key}: {units.shape(shape)}, {_on_mesh(words, spec)}"
    shards, sizes = parts(shape, labels, ty.device_mesh), mesh_shape(ty.device_mesh)
    return ShardMap(title, tuple(shards), _counts(labels, sizes, len(shape)), nodes)
