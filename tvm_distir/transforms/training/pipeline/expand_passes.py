# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define SerializePipeline and ExpandSchedule, which expand pipelined steps at levels 1 and 5."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    AXES_ATTR,
    DEVICE_NUM_ATTR,
    MESH_INFO,
    NAMES_ATTR,
    mesh_axes,
    mesh_devices,
    meshes,
    same_mesh,
)
from tvm_distir.core.ir.attributes import PIPELINE_ATTR
from tvm_distir.core.ir.views import (
    Axes,
    are_views,
    order_of,
    view_of,
)
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


def _other_views(known: Sequence[DeviceMesh], number: int) -> list[Axes]:
    """Return the orders of axes of the other views of a mesh that a module has."""
    home = known[number]
    others = (mesh for mesh in known if are_views(mesh, home) and not same_mesh(mesh, home))
    return list(dict.fromkeys(order_of(mesh, home) for mesh in others))


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
    known, names = list(endpoints.meshes), list(endpoints.names)
    of_mesh = [list(axes[k]) for k in endpoints.of_rank]
    for rank, number in enumerate(endpoints.of_rank):
        for order in _other_views(meshes(mod), number):
            known.append(view_of(endpoints.meshes[rank], order))
            of_mesh.append([axes[number][a] for a in order])
            names.append("_".join([endpoints.names[rank], *of_mesh[-1]]))
    attrs[AXES_ATTR], attrs[NAMES_ATTR] = of_mesh, names
    attrs[DEVICE_NUM_ATTR] = 1 + max(int(mesh_devices(mesh).max()) for mesh in endpoints.meshes)
    out = ir.IRModule(functions, attrs=ir.make_node("ir.DictAttrs", **attrs))
    out.update_global_info(MESH_INFO, known)
    return out
