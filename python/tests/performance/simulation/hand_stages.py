# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps in stages written by hand: equal stages of one kernel per phase, on one device per rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.performance.simulation.hand_programs import Build
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Value
from tvm_distir.performance.program.pipeline_program import Edge, PipelineProgram, Stage, StageSum
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import Phase, StageKind

X, GRAD, Y, DX, KEPT, WEIGHTS, SUM, NEW, TOTAL = range(9)
"""Slots."""


@dataclass(frozen=True)
class Sizes:
    """Microseconds of the phases, bytes of what is kept and of what moves."""

    forward: float = 3
    backward: float = 6
    weight: float = 0
    kept: int = 0
    moved: int = 0
    weights: int = 0


def stages(schedule: Schedule, sizes: Sizes, summed: bool = False) -> Program:
    """Equal stages; with ``summed`` the first and the last one add up a number."""
    last = schedule.stage_count - 1
    functions: dict[str, Any] = {}
    roles: dict[str, StageKind] = {}
    created = []
    for stage in range(last + 1):
        name = "only" if not last else {0: "first", last: "last"}.get(stage, "middle")
        if name not in roles:
            roles[name] = _stage_kind(
                name, stage > 0, stage < last, schedule, sizes, functions, summed
            )
        role = roles[name]
        created.append(Stage(list(roles).index(name), (f"w{stage}",), (f"w{stage}",)))
        assert role.params == (WEIGHTS,)
    rank_of, move = schedule.rank_of, sizes.moved

    def edge(here: int, present: int, slots: tuple[int, int], direction: str, size: int) -> Edge:
        wire = (0, 0) if rank_of[here] == rank_of[present] else (size, size)
        return Edge(
            (here, slots[0]), (present, slots[1]), direction, (size, size), wire, ("R", "R")
        )

    edges = []
    for stage in range(last):
        edges.append(edge(stage, stage + 1, (Y, X), "forward", move))
        edges.append(edge(stage + 1, stage, (DX, GRAD), "backward", move))
    sums: tuple[StageSum, ...] = ()
    if summed and last:
        ends = (
            edge(0, last, (TOTAL, TOTAL), "sum", 4),
            edge(last, 0, (TOTAL, TOTAL), "total", 4),
        )
        sums = (StageSum("norm", (0, last), ends),)
    meshes = tuple(Mesh(f"rank{r}", ("x",), (1,), (8 * r,)) for r in range(schedule.stages))
    staged = PipelineProgram(schedule, tuple(roles.values()), tuple(created), tuple(edges), sums)
    program = Program(meshes, functions, (), staged)
    program.check()
    return program


def _stage_kind(
    name: str,
    before: bool,
    behind: bool,
    schedule: Schedule,
    sizes: Sizes,
    functions: dict[str, Any],
    summed: bool,
) -> StageKind:
    slots = [
        Value("x", (sizes.moved,), "int8", sizes.moved),
        Value("grad", (sizes.moved,), "int8", sizes.moved),
        Value("y", (sizes.moved,), "int8", sizes.moved),
        Value("dx", (sizes.moved,), "int8", sizes.moved),
        Value("kept", (sizes.kept,), "int8", sizes.kept),
        Value("w", (sizes.weights,), "int8", sizes.weights, "weight", (sizes.weights,), "R"),
        Value("sum", (0,), "int8", 0),
        Value("new", (0,), "int8", 0),
        Value("total", (4,), "int8", 4),
    ]
    phases = []

    def phase(word: str, inputs: list[int], outputs: list[int], time_us: float) -> None:
        build = Build()
        for slot in inputs:
            build.param(slots[slot].name, slots[slot].bytes)
        reads = " ".join(slots[slot].name for slot in inputs)
        build.compute("work", reads, time_us, 0)
        for slot in outputs:
            build.compute(f"{slots[slot].name}_made", "work", 0, slots[slot].bytes)
        full = f"{name}.{word}"
        functions[full] = build.done(" ".join(f"{slots[slot].name}_made" for slot in outputs))
        phases.append(Phase(word, full, tuple(inputs), tuple(outputs)))

    phase("forward", [WEIGHTS, *([X] if before else [])], [Y, KEPT], sizes.forward)
    reads = [KEPT, *([GRAD] if behind else [])]
    phase("backward", reads, [DX], sizes.backward)
    if schedule.splits_backward:
        phase("weight", [KEPT], [], sizes.weight)
    phase("accumulate", [KEPT], [SUM], 0)
    if schedule.micro_batches > 1:
        phase("accumulate_next", [SUM, KEPT], [SUM], 0)
    pairs: tuple[tuple[int, int], ...] = ()
    reads = [SUM, WEIGHTS]
    if summed and (not before or not behind) and (before or behind):
        slots.append(Value("part", (4,), "int8", 4))
        pairs = ((len(slots) - 1, TOTAL),)
        phase("part:0", [SUM], [len(slots) - 1], 1)
        if before:
            phase("add:0", [TOTAL, len(slots) - 1], [TOTAL], 1)
        reads = [*reads, TOTAL]
    phase("end", reads, [NEW], 0)
    return StageKind(name, tuple(slots), (WEIGHTS,), (NEW,), pairs, (), tuple(phases))


def without(program: Program, **changes: Any) -> Program:
    """A program with other stages."""
    assert program.staged is not None
    return replace(program, staged=replace(program.staged, **changes))
