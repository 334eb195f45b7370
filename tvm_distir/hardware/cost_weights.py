# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derive the weights of propagation from the times of a system."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir

from tvm_distir.core.collectives import sent_share
from tvm_distir.core.ir import (
    axis_groups,
    known_shape,
    mesh_shape,
    meshes,
    relax_functions,
    tensor_type,
    value_types,
)
from tvm_distir.core.ops import size_bytes
from tvm_distir.core.propagation import Costs

from .systems.system import System

_LARGE_BYTES = 1 << 30
_LARGE_FLOPS = 1 << 44
"""Sizes at which the times of a system grow linearly."""


def costs_for(mod: ir.IRModule, system: System | str | None) -> Costs:
    """Return the weights of a module with meshes: those of a system, per mesh axis.

    Parameters
    ----------
    mod : IRModule
        The module, at level 2.
    system : System or str, optional
        None: the weights that hold without a system.
    """
    resolved = System.resolve(system)
    if resolved is None:
        return Costs()
    axes = [
        axis_groups(mesh, (axis,)) for mesh in meshes(mod) for axis in range(len(mesh_shape(mesh)))
    ]
    return costs_of_axes(resolved, main_dtype(mod), axes)


def main_dtype(mod: ir.IRModule) -> str:
    """Return the floating dtype of most parameter bytes; ``float32`` where there is none."""
    result: dict[str, int] = {}
    for _, fn in relax_functions(mod):
        for ty in (leaf for param in fn.params[:] for leaf in value_types(param.ty)):
            tensor, shape = tensor_type(ty), known_shape(ty)
            if tensor is None or shape is None:
                continue
            dtype = str(tensor.dtype)
            if dtype.startswith(("float", "bfloat")):
                result[dtype] = result.get(dtype, 0) + size_bytes(shape, dtype)
    return max(sorted(result), key=lambda dtype: result[dtype], default="float32")


def costs_of_system(system: System, dtype: str = "float16", ranks: int = 2) -> Costs:
    """Return weights in the proportions of a system's times.

    Parameters
    ----------
    system : System
    dtype : str
        The dtype of the matmuls.
    ranks : int
        The links are measured among so many devices, the first devices; of a single device, which
        sends nothing, as of two.
    """
    return costs_of_axes(system, dtype, [[list(range(max(ranks, 2)))]])


def costs_of_axes(system: System, dtype: str, axes: Sequence[Sequence[Sequence[int]]]) -> Costs:
    """Return weights in the proportions of a system's times, with costs of links per mesh axis.

    Slopes of the system's formulae at large sizes: seconds per sent byte of an all-gather along an
    axis, per byte of a memory-bound op, per FLOP of a matmul, and the time of an empty collective.
    ``wire`` and ``launch`` are those of the slowest axis.

    Parameters
    ----------
    system : System
    dtype : str
        The dtype of the matmuls.
    axes : sequence of sequence of sequence of int
        The device ids of the groups of each axis, which run at once.
    """

    def kernel_s(flops: int, moved_bytes: int, kernel_class: str) -> float:
        return system.roofline(flops, moved_bytes, kernel_class, dtype).time_s

    large, work = _LARGE_BYTES, _LARGE_FLOPS
    memory_s = (kernel_s(0, 2 * large, "memory") - kernel_s(0, large, "memory")) / large
    flop_s = (kernel_s(2 * work, 0, "matmul") - kernel_s(work, 0, "matmul")) / work
    times = [_link_times(system, groups) for groups in axes]
    slowest_s = max((byte_s for byte_s, _ in times), default=0.0)
    if not slowest_s:  # nothing is ever sent
        return costs_of_system(system, dtype)
    byte_weight = 1024
    while byte_weight * flop_s < 4 * slowest_s and byte_weight < 1 << 20:
        byte_weight *= 2

    def weight(seconds: float) -> int:
        return max(1, round(byte_weight * seconds / slowest_s))

    links = tuple((weight(byte_s or slowest_s), weight(launch_s)) for byte_s, launch_s in times)
    launch, by_axis = max(launch for _, launch in links), links if len(set(links)) > 1 else ()
    return Costs(byte_weight, weight(memory_s), weight(flop_s), launch, links=by_axis)


def _link_times(system: System, groups: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the seconds per sent byte of an all-gather, and those of an empty collective."""
    layout = system.layout(groups)
    empty_s, once_s, twice_s = (
        max(
            system.spread_time_s("all_gather", payload_bytes, where, layout.sharing)
            for where in layout.kinds
        )
        for payload_bytes in (0, _LARGE_BYTES, 2 * _LARGE_BYTES)
    )
    sent_bytes = sent_share("all_gather", _LARGE_BYTES, max(len(groups[0]), 2))
    return (twice_s - once_s) / sent_bytes, empty_s
