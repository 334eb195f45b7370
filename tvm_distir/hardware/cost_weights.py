# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derives the cost weights of communication, memory and arithmetic for a module on a system."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core import (
    Costs,
    axis_groups,
    known_shape,
    mesh_shape,
    meshes,
    relax_functions,
    size_bytes,
    tensor_type,
    value_types,
)
from tvm_distir.hardware.systems.system import System


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
    return Costs.for_axes(resolved, main_dtype(mod), axes)


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
