# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export a pipelined level-5 module to a ``Program`` that keeps stages and schedule."""

from __future__ import annotations

import itertools
import math

from tvm import ir
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.collectives import Transfer
from tvm_distir.core.ir import mesh_axes, mesh_shape, parse_placement
from tvm_distir.core.ops import size_bytes
from tvm_distir.core.plan import ACTIVATION, GRADIENT, PART, TOTAL, Pipeline, plain_name
from tvm_distir.transforms import NEXT_STAGE, IoPlacement, MessageEndpoints

from .callees import with_callees
from .mesh import Mesh
from .pipeline_program import Edge, PipelineProgram, Stage, StageSum
from .program import Program
from .stage_kind_exporter import StageKindExporter


def export_stages(mod: ir.IRModule, pipeline: Pipeline) -> Program:
    """Export a module in stages; see :func:`.exporter.export`."""
    return _Staging(mod, pipeline).run()


class _Staging:
    """Builder of the parts of a pipelined program.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    pipeline : Pipeline
    """

    def __init__(self, mod: ir.IRModule, pipeline: Pipeline) -> None:
        self.mod, self.pipeline, self.schedule = mod, pipeline, pipeline.schedule
        self.endpoints = MessageEndpoints(mod, pipeline)
        notes = pipeline.stages
        self.exporters = {
            name: StageKindExporter(
                mod, pipeline, next(k for k, s in enumerate(notes) if s.function == name), ports
            )
            for name, ports in self.endpoints.ports.items()
        }

    def run(self) -> Program:
        """Export phases and their callees, then assign them to stages."""
        stage_kinds = {name: exporter.run() for name, exporter in self.exporters.items()}
        functions = {
            k: fn for exporter in self.exporters.values() for k, fn in exporter.functions.items()
        }
        exported = {
            k: fn for exporter in self.exporters.values() for k, fn in exporter.exported.items()
        }
        mod = self.mod
        if exported:
            mod = mod.clone()
            mod.update(ir.IRModule({ir.GlobalVar(name): fn for name, fn in exported.items()}))
        calling = [e for exporter in self.exporters.values() for e in exporter.exporters]
        callees = with_callees(mod, functions, calling)
        first = {number: rank for rank, number in reversed(list(enumerate(self.endpoints.of_rank)))}
        numbers = {name: i for i, name in enumerate(stage_kinds)}
        named: set[str] = set()
        known, missing = set(self.pipeline.inputs), set(self.pipeline.outputs)
        stages = []
        for note in self.pipeline.stages:
            results = [w for w in note.results if w in missing]
            names = ["" if w in named else plain_name(w) for w in results]
            named.update(results)
            inputs = [plain_name(w) for w in note.params if w in known]
            stages.append(Stage(numbers[note.function], tuple(inputs), tuple(names)))
        staged = PipelineProgram(
            self.schedule, tuple(stage_kinds.values()), tuple(stages),
            tuple(self._neighbours()), tuple(self._sums()),
        )  # fmt: skip
        axes = mesh_axes(self.mod)
        program = Program(
            meshes=tuple(
                Mesh.of(name, axes[k], mesh)
                for name, k, mesh in zip(
                    self.endpoints.names, self.endpoints.of_rank, self.endpoints.meshes, strict=True
                )
            ),
            functions={name: fn.on(first[fn.mesh]) for name, fn in callees.items()},
            entries=(),
            staged=staged,
        )
        program.check("export")
        return program

    def _neighbours(self) -> list[Edge]:
        """Return the edges of activations and gradients."""
        neighbours = []
        for stage, note in enumerate(self.pipeline.stages):
            for kind, step in ((ACTIVATION, 1), (GRADIENT, -1)):
                for slot in [w for w in note.results if w.startswith(f"{kind}:")]:
                    layouts = (
                        self.endpoints.made(stage, slot),
                        self.endpoints.read(stage + step, slot),
                    )
                    source = (stage, self._slot(stage, slot))
                    target = (stage + step, self._slot(stage + step, slot, True))
                    direction = "forward" if step > 0 else "backward"
                    neighbours.append(self._edge(source, target, direction, slot, *layouts))
        return neighbours

    def _sums(self) -> list[StageSum]:
        """Return the sums over stages, with their edges."""
        sums = []
        for stage_sum in self.pipeline.sums:
            term, total = f"{PART}:{stage_sum.name}", f"{TOTAL}:{stage_sum.name}"
            slots = {k: self._slot(k, total, True) for k in stage_sum.stages}
            edges = []
            for source, target in itertools.pairwise(stage_sum.stages):
                layouts = self.endpoints.made(source, term), self.endpoints.made(target, term)
                ends = (source, slots[source]), (target, slots[target])
                edges.append(self._edge(*ends, "sum", term, *layouts))
            last = stage_sum.stages[-1]
            ranks: set[int] = {self.schedule.rank_of[last]}
            for stage in stage_sum.stages[:-1]:
                rank = self.schedule.rank_of[stage]
                if rank in ranks and rank != self.schedule.rank_of[last]:
                    continue
                ranks.add(rank)
                ends = (last, slots[last]), (stage, slots[stage])
                layouts = self.endpoints.made(last, term), self.endpoints.read(stage, total)
                edges.append(self._edge(*ends, "total", total, *layouts))
            sums.append(StageSum(plain_name(stage_sum.name), stage_sum.stages, tuple(edges)))
        return sums

    def _slot(self, stage: int, slot_name: str, read: bool = False) -> int:
        """Return the slot of a stage's parameter or result by its position in its function."""
        note = self.pipeline.stages[stage]
        exporter = self.exporters[note.function]
        if read:
            return exporter.param(exporter.note.params[note.params.index(slot_name)])
        return exporter.slot(exporter.note.results[note.results.index(slot_name)])

    def _edge(
        self, source: tuple[int, int], target: tuple[int, int], direction: str, slot: str,
        source_layout: IoPlacement, read: IoPlacement,
    ) -> Edge:  # fmt: skip
        first, second = (self.schedule.rank_of[end[0]] for end in (source, target))
        ends = (
            (source_layout, self.endpoints.meshes[first]),
            (read, self.endpoints.meshes[second]),
        )
        sent = _wire_bytes(*ends) if first != second else (0, 0)
        if first == second:
            self.endpoints.agree(source[0], slot, source_layout, read, NEXT_STAGE)
        return Edge(
            source, target, direction,
            (_local_bytes(*ends[0]), _local_bytes(*ends[1])), sent,
            (source_layout.placement, read.placement),
        )  # fmt: skip


def _wire_bytes(
    source: tuple[IoPlacement, DeviceMesh], target: tuple[IoPlacement, DeviceMesh]
) -> tuple[int, int]:
    """Return the most that a device sends, and receives. The ends have no device in common."""
    start, sides = 0, []
    for layout, mesh in (source, target):
        shape = mesh_shape(mesh)
        count = math.prod(shape)
        sides.append((shape, tuple(range(start, start + count)), parse_placement(layout.placement)))
        start += count
    moved = Transfer(0, source[0].shape, sides[0], sides[1])
    sent, received = (
        size_bytes((moved.crossing_elements(sends),), source[0].dtype) for sends in (True, False)
    )
    return sent, received


def _local_bytes(layout: IoPlacement, mesh: DeviceMesh) -> int:
    shape = [-(-n // layout.parts(dim, mesh)) for dim, n in enumerate(layout.shape)]
    return size_bytes(tuple(shape), layout.dtype)
