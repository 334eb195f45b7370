# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A step in stages at level 5: one program per rank of the pipeline."""

from __future__ import annotations

from typing import Any

from tvm import ir

from ...ir import (
    AXES_ATTR,
    DEVICE_NUM_ATTR,
    IO_ATTR,
    MESH_INFO,
    NAMES_ATTR,
    PIPELINE_ATTR,
    mesh_axes,
    mesh_devices,
    mesh_names,
    meshes,
)
from ...schedules import Pipeline, programs
from .messages import Wires
from .places import rank_meshes, read_ports
from .program import Program, unfit
from .renamed import Renamed


def expand_schedule(mod: ir.IRModule) -> ir.IRModule:
    """Apply :func:`.passes.ExpandSchedule`."""
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        return mod
    if not all(mod[f].attrs and IO_ATTR in mod[f].attrs for f in pipeline.functions):
        raise unfit(pipeline.functions[0], "the module is not at level 5", "Lower it first.")
    return _Expansion(mod, pipeline).run()


class _Expansion:
    """All programs of a step."""

    def __init__(self, mod: ir.IRModule, pipeline: Pipeline) -> None:
        self.mod, self.pipeline = mod, pipeline
        self.ports = {name: read_ports(mod[name]) for name in pipeline.functions}
        ranks = pipeline.schedule.rank_of
        of_rank = [
            self.ports[pipeline.stages[ranks.index(rank)].function].mesh
            for rank in range(pipeline.schedule.stages)
        ]
        for stage, rank in enumerate(ranks):
            note = pipeline.stages[stage]
            if self.ports[note.function].mesh != of_rank[rank]:
                raise unfit(note.function, "the stages of a rank lie on two meshes", "Use one.")
        self.meshes = rank_meshes(meshes(mod), of_rank, pipeline.schedule.devices)
        self.renamed = Renamed(mod, meshes(mod), of_rank, self.meshes)
        self.of_rank = of_rank

    def run(self) -> ir.IRModule:
        """Write them."""
        count = len(self.meshes)
        functions: dict[Any, Any] = {}
        home: dict[str, int] = {}
        for number, note in enumerate(self.pipeline.stages):
            for what in note.results:
                if what in self.pipeline.outputs:
                    home.setdefault(what, number)
        wires = Wires(self.pipeline, self.ports, self.meshes)
        for rank, steps in enumerate(programs(self.pipeline.schedule)):
            name = "main" if count == 1 else f"main_mesh{rank}"
            functions[ir.GlobalVar(name)] = Program(wires, self.renamed, rank, name, home).run(
                steps
            )
        functions.update(self.renamed.functions())
        axes, names = mesh_axes(self.mod), mesh_names(self.mod)
        attrs = {str(k): v for k, v in self.mod.attrs.items() if k != PIPELINE_ATTR}
        attrs[AXES_ATTR] = [axes[k] for k in self.of_rank]
        attrs[NAMES_ATTR] = [
            f"{names[k]}_{r}" if count > 1 else names[k] for r, k in enumerate(self.of_rank)
        ]
        attrs[DEVICE_NUM_ATTR] = 1 + max(int(mesh_devices(mesh).max()) for mesh in self.meshes)
        out = ir.IRModule(functions, attrs=ir.make_node("ir.DictAttrs", **attrs))
        out.update_global_info(MESH_INFO, self.meshes)
        return out


__all__ = ["expand_schedule"]
