# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Place fewer key and value heads than devices on groups of neighbouring devices.

A mesh axis of 16 devices for 8 heads becomes two: an axis of 8 along which these heads are sharded,
and behind it an axis of 2, along which they are replicated and all else is sharded further. Devices
of a group are neighbours. A single head of keys and values needs no second axis: it is on all
devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm import ir

from tvm_distir.core.plan import MeshSpec, data_positions

from .consumers import Consumers
from .model_info import entries, tensor_parameters
from .registry import StrategySpec, find_strategy
from .transformer_weights import KnownWeight, cut_dim, known_weight, projection_of

MEGATRON = "megatron"
COPIES = "_copies"
"""Ends the name of the axis along which heads of keys and values are repeated."""


def mesh_of(mod: ir.IRModule, mesh: MeshSpec, specs: Sequence[StrategySpec]) -> MeshSpec:
    """Return the mesh as several strategies have it, which must all have the same."""
    for spec in specs:
        if spec.name == MEGATRON:
            axis = str(spec.options.get("axis", find_strategy(MEGATRON).options["axis"].default))
            if mesh.axes.get(axis, 1) > 1:
                mesh = with_copies(mesh, axis, key_heads(mod, Consumers(mod)))
    return mesh


def heads_of(weight: KnownWeight, consumers: Consumers) -> Iterator[int]:
    """Yield into how many heads the results of a projection are split, by its uses."""
    shape = weight.parameter.shape
    if weight.is_bias or shape is None or not weight.uses:
        return
    width = shape[cut_dim(weight)]
    for use in weight.uses:
        heads = consumers.split_into(use.function, use.result, width)
        if heads is not None:
            yield heads


def with_copies(mesh: MeshSpec, axis: str, heads: int | None) -> MeshSpec:
    """Return the mesh with an axis of copies where ``axis`` has more devices than heads.

    Parameters
    ----------
    mesh : MeshSpec
    axis : str
        The axis. Where the mesh has no axis of this name, or it does not hold groups of equal size,
        the mesh stays as it is.
    heads : int or None
        The number of heads of keys and values, as :func:`key_heads` determines it.
    """
    count = mesh.axes.get(axis, 1)
    if heads is None or not 1 < heads < count or count % heads:
        return mesh
    sizes: dict[str, int] = {}
    for name, size in mesh.axes.items():
        sizes[name] = heads if name == axis else size
        if name == axis:
            sizes[axis + COPIES] = count // heads
    return MeshSpec(mesh.name, sizes, start=mesh.start, device_ids=mesh.device_ids)


def tensor_axes(mesh: MeshSpec, axis: str) -> tuple[int, ...]:
    """Numbers of the axes that an axis of a strategy has become: the axis, and that of copies."""
    return tuple(mesh.axis_number(name) for name in (axis, axis + COPIES) if name in mesh.axes)


def key_heads(mod: ir.IRModule, consumers: Consumers) -> int | None:
    """Return the heads of keys and values, the fewest of all layers; None where there are none."""
    return min(_key_heads(mod, consumers), default=None)


def _key_heads(mod: ir.IRModule, consumers: Consumers) -> Iterator[int]:
    for name, fn, rule_name in entries(mod):
        data = data_positions(fn, name)
        for parameter in tensor_parameters(name, fn, rule_name):
            projection = projection_of(parameter.name)
            if parameter.position in data or projection is None or projection[0] != "key_value":
                continue
            weight = known_weight(parameter, fn, consumers)
            if weight is not None:
                yield from heads_of(weight, consumers)
