# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define SerializePipeline and ExpandSchedule, which expand pipelined steps at levels 1 and 5."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.ir import (
    AXES_ATTR,
    DEVICE_NUM_ATTR,
    MESH_INFO,
    NAMES_ATTR,
    mesh_axes,
    mesh_devices,
    meshes,
)
from tvm_distir.core.ir.attributes import PIPELINE_ATTR
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import Pipeline, programs

from .exchange_placements import MessageEndpoints
from .in_turn import run_in_turn
from .rank_program import RankProgram
from .relocation import RelocatedFunctions


@module_pass("global")
def SerializePipeline() -> Rewrite:
    """Write a pipelined training step as one sequential function for one device.

    Units follow each other in an order that the schedule allows. Modules without stages stay as
    they are.

    Returns
    -------
    Pass
        A module pass. It raises LoweringError DIST0512 for a module that is distributed.
    """
    return run_in_turn


@module_pass("local")
def ExpandSchedule() -> Rewrite:
    """Write a pipelined training step as one program per pipeline rank.

    Units follow each other as the schedule has them, with sends and receives between stages.
    Modules without stages stay as they are.

    Returns
    -------
    Pass
        A module pass. It raises LoweringError DIST0512 if stages do not fit together.
    """
    return expand_schedule


def expand_schedule(mod: ir.IRModule) -> ir.IRModule:
    """Apply :func:`ExpandSchedule`."""
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        return mod
    endpoints = MessageEndpoints(mod, pipeline)
    renamed = RelocatedFunctions(mod, meshes(mod), endpoints.of_rank, endpoints.meshes)
    home: dict[str, int] = {}
    for number, note in enumerate(pipeline.stages):
        for slot in note.results:
            if slot in pipeline.outputs:
                home.setdefault(slot, number)
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    for rank, steps in enumerate(programs(pipeline.schedule)):
        name = "main" if len(endpoints.meshes) == 1 else f"main_mesh{rank}"
        functions[ir.GlobalVar(name)] = RankProgram(endpoints, renamed, rank, name, home).run(steps)
    functions.update(renamed.functions())
    axes = mesh_axes(mod)
    attrs = {str(k): v for k, v in mod.attrs.items() if k != PIPELINE_ATTR}
    attrs[AXES_ATTR] = [axes[k] for k in endpoints.of_rank]
    attrs[NAMES_ATTR] = endpoints.names
    attrs[DEVICE_NUM_ATTR] = 1 + max(int(mesh_devices(mesh).max()) for mesh in endpoints.meshes)
    out = ir.IRModule(functions, attrs=ir.make_node("ir.DictAttrs", **attrs))
    out.update_global_info(MESH_INFO, endpoints.meshes)
    return out
