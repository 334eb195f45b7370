# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Match the placements of values that stages exchange, on the meshes of the ranks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tvm import ir

from tvm_distir.core.ir import mesh_names, meshes
from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.plan import Pipeline
from tvm_distir.support import LoweringError

from .stage_placements import IoPlacement, rank_meshes, read_ports

NEXT_STAGE = "the next stage of the same mesh"


def unfit(location: str, problem: str, remedy: str) -> LoweringError:
    """Return the error about stages that do not fit together."""
    return LoweringError("DIST0512", problem, location=location, remedy=remedy)


class MessageEndpoints:
    """Endpoints of all messages of a step, and their tags.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    pipeline : Pipeline

    Attributes
    ----------
    ports : dict of str to Ports
        The placements of each stage function.
    rank_of : tuple of int
        Rank of each stage.
    of_rank : list of int
        Number of each rank's mesh in the module.
    meshes : list of DeviceMesh
        The meshes of the ranks.
    names : list of str
        The names of the meshes.

    Raises
    ------
    LoweringError
        DIST0512 the module is not at level 5, or the stages of a rank are on two meshes.
    MeshError
        DIST0202 see :func:`.stage_placements.rank_meshes`.
    """

    def __init__(self, mod: ir.IRModule, pipeline: Pipeline) -> None:
        self.pipeline, self.rank_of = pipeline, pipeline.schedule.rank_of
        if not all(mod[f].attrs and IO_ATTR in mod[f].attrs for f in pipeline.functions):
            raise unfit(
                pipeline.functions[0], "the module is not at level 5", "Lower the module first."
            )
        known = meshes(mod)
        self.ports = {name: read_ports(mod[name], known) for name in pipeline.functions}
        mesh_of: dict[int, int] = {}
        for note, rank in zip(pipeline.stages, self.rank_of, strict=True):
            mesh = self.ports[note.function].mesh
            if mesh_of.setdefault(rank, mesh) != mesh:
                raise unfit(note.function, "the stages of a rank are on two meshes", "Use one.")
        self.of_rank = [mesh_of[rank] for rank in range(pipeline.schedule.stages)]
        self.meshes = rank_meshes(known, self.of_rank, pipeline.schedule.devices)
        names = mesh_names(mod)
        many = len(self.meshes) > 1
        self.names = [f"{names[k]}_{r}" if many else names[k] for r, k in enumerate(self.of_rank)]
        self._tags: dict[Any, int] = {}

    def made(self, stage: int, slot: str) -> IoPlacement:
        """Return the placement of a result of a stage."""
        note = self.pipeline.stages[stage]
        return self.ports[note.function].outputs[note.results.index(slot)]

    def read(self, stage: int, slot: str) -> IoPlacement:
        """Return the placement of a parameter of a stage."""
        note = self.pipeline.stages[stage]
        return self.ports[note.function].inputs[note.params.index(slot)]

    def agree(
        self, stage: int, slot: str, source: IoPlacement, read: IoPlacement, reader: str
    ) -> None:
        """Reject values that are read on a stage's mesh in another placement (DIST0512)."""
        mesh = self.meshes[self.rank_of[stage]]
        if source.axes(mesh) != read.axes(mesh):
            raise unfit(
                f"{self.pipeline.stages[stage].function}/{slot}",
                f'it is produced as "{source.placement}" and read as "{read.placement}" '
                f"by {reader}",
                "Give both the same placement in the plan.",
            )

    def tag(self, key: Hashable) -> int:
        """Return the tag of a message."""
        return self._tags.setdefault(key, len(self._tags))
