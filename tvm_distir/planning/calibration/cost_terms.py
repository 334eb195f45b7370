# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Express a pipelined step as counts of kernel batches, collectives and messages."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from tvm_distir.hardware import GroupTopology, System
from tvm_distir.performance import (
    HOST,
    HOSTS,
    Edge,
    Function,
    OpCosts,
    Phase,
    PipelineProgram,
    Program,
    StageSteps,
    launched,
    unit_phases,
)
from tvm_distir.support import memoized


class KernelTerm(NamedTuple):
    """Kernels that take equally long on any system."""

    kernel_class: str
    dtype: str
    flops: int
    bytes: int


class CollectiveTerm(NamedTuple):
    """A collective on groups of equal layout on the nodes, ``sharing`` of them per node."""

    kind: str
    payload_bytes: int
    spread: GroupTopology
    sharing: int
    gradients: bool


@dataclass(frozen=True)
class KernelBatch:
    """Kernels that a function itself launches, their counts, and launches by Python."""

    kernels: tuple[tuple[KernelTerm, int], ...]
    launches: int


@dataclass
class CostTerms:
    """Cost terms of some work.

    Attributes
    ----------
    bodies : Counter of KernelBatch
    collectives : Counter of CollectiveTerm
    marks : Counter of str
        Kernel classes of what the host does besides launching kernels.
    """

    bodies: Counter[KernelBatch] = field(default_factory=Counter)
    collectives: Counter[CollectiveTerm] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)

    def add(self, other: CostTerms, count: int = 1) -> None:
        """Add another's parts so many times."""
        for ours, theirs in (
            (self.bodies, other.bodies),
            (self.collectives, other.collectives),
            (self.marks, other.marks),
        ):
            for key, number in theirs.items():
                ours[key] += number * count  # type: ignore[index]


class StepCostTerms:
    """Cost terms of the units and messages of a pipelined step.

    Parameters
    ----------
    program : Program
        Grouped into kernels.
    staged : PipelineProgram
        The pipelined step of the program.
    system : System
        The system whose nodes determine the sizes of groups.
    """

    def __init__(self, program: Program, staged: PipelineProgram, system: System) -> None:
        self.program, self.staged, self._system = program, staged, system
        self._costs = OpCosts(program, system)
        self._edges: dict[Hashable, CostTerms] = {}
        self._phases = [unit_phases(role, staged.schedule) for role in staged.stage_kinds]

    @functools.cached_property
    def steps(self) -> StageSteps:
        """Return the steps of all ranks, with collectives that block."""
        return StageSteps.of(self.program, self._system, blocking=True)

    def phases(self, stage: int, name: str) -> list[tuple[Phase, CostTerms]]:
        """Return the phases of a unit on the rank of its stage, in turn, with their parts."""
        number = self.staged.stages[stage].role
        rank = self.staged.schedule.rank_of[stage]
        phases = map(self.staged.stage_kinds[number].phase, self._phases[number].get(name, ()))
        return [(phase, self._function(phase.function, rank)) for phase in phases if phase]

    def known(self) -> list[CostTerms]:
        """Return the parts of all phases and messages."""
        phases = (
            phase
            for stage, stage_info in enumerate(self.staged.stages)
            for name in self._phases[stage_info.role]
            for phase in self.phases(stage, name)
        )
        return [*(parts for _, parts in phases), *map(self.edge, self.staged.all_edges)]

    def edge(self, edge: Edge) -> CostTerms:
        """Return the parts of a message."""
        rank_of = self.staged.schedule.rank_of
        first, second = rank_of[edge.source[0]], rank_of[edge.target[0]]
        key = (first, second, edge.wire_bytes, edge.split, edge.bytes)
        if key in self._edges:
            return self._edges[key]
        steps, _ = self._costs.message_steps(
            edge.wire_bytes, edge.bytes[1], edge.split, first, second
        )
        steps[0] = steps[0]._replace(size_bytes=max(edge.part_bytes))
        parts = CostTerms()
        for kind, size, layout in steps:
            for where in layout.kinds:
                parts.collectives[CollectiveTerm(kind, size, where, layout.sharing, False)] += 1
        self._edges[key] = parts
        return parts

    @memoized
    def _function(self, name: str, rank: int) -> CostTerms:
        fn, terms = self.program.functions[name], CostTerms()
        for op in fn.ops:
            if op.kind == "call":
                terms.add(self._function(op.callee, rank))
            elif op.kind == "collective" and op.group_size > 1:
                layout = self._costs.layout(rank, op.mesh_axes)
                worst = max(layout.kinds, key=lambda where: (where.nodes, where.ranks))
                gradients = op.kernel_class == "gradients"
                terms.collectives[
                    CollectiveTerm(
                        op.collective, op.payload_bytes, worst, layout.sharing, gradients
                    )
                ] += 1
            elif op.kind == "compute" and op.kernel_class in HOSTS and op.kernel_class != HOST:
                terms.marks[op.kernel_class] += op.flops
        terms.bodies[_body(fn)] += 1
        return terms


def _body(fn: Function) -> KernelBatch:
    kernels: Counter[KernelTerm] = Counter()
    for op in (fn.ops[number] for number in launched(fn)):
        if op.kernel_class != "view":
            moved = op.bytes_read + op.bytes_written
            kernels[KernelTerm(op.kernel_class, op.dtype, op.flops, moved)] += 1
    launches = sum(op.flops for op in fn.ops if op.kind == "compute" and op.kernel_class == HOST)
    return KernelBatch(tuple(kernels.items()), launches)
