# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Expand a pipelined step at level 5 into one program per pipeline rank."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_distir.core import (
    AXES_ATTR,
    DEVICE_NUM_ATTR,
    MESH_INFO,
    NAMES_ATTR,
    PIPELINE_ATTR,
    Pipeline,
    mesh_axes,
    mesh_devices,
    meshes,
    programs,
)

from .rank_program import Program
from .renamed import RelocatedFunctions
from .wires import Wires


def expand_schedule(mod: ir.IRModule) -> ir.IRModule:
    """Apply :func:`.passes.ExpandSchedule`."""
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        return mod
    wires = Wires(mod, pipeline)
    renamed = RelocatedFunctions(mod, meshes(mod), wires.of_rank, wires.meshes)
    home: dict[str, int] = {}
    for number, note in enumerate(pipeline.stages):
        for what in note.results:
            if what in pipeline.outputs:
                home.setdefault(what, number)
    functions: dict[Any, Any] = {}
    for rank, steps in enumerate(programs(pipeline.schedule)):
        name = "main" if len(wires.meshes) == 1 else f"main_mesh{rank}"
        functions[ir.GlobalVar(name)] = Program(wires, renamed, rank, name, home).run(steps)
    functions.update(renamed.functions())
    axes = mesh_axes(mod)
    attrs = {str(k): v for k, v in mod.attrs.items() if k != PIPELINE_ATTR}
    attrs[AXES_ATTR] = [axes[k] for k in wires.of_rank]
    attrs[NAMES_ATTR] = wires.names
    attrs[DEVICE_NUM_ATTR] = 1 + max(int(mesh_devices(mesh).max()) for mesh in wires.meshes)
    out = ir.IRModule(functions, attrs=ir.make_node("ir.DictAttrs", **attrs))
    out.update_global_info(MESH_INFO, wires.meshes)
    return out


__all__ = ["expand_schedule"]
