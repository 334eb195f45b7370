# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compose the units that a stage runs, as functions that call phases in sequence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tvm_distir.performance.program.parts import Entry, Function, Op, Value
from tvm_distir.performance.program.pipeline_program import PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import GATHER, REDUCE, StageKind
from tvm_distir.performance.program.unit_phases import unit_phases

from .overlapped_unit import OverlappedUnit, PhaseCall


@dataclass(frozen=True)
class StageUnit:
    """Unit of a stage kind.

    Attributes
    ----------
    function : str
        The function that runs its phases.
    inputs, outputs : tuple of int
        Slots of the stage kind that its parameters and results are.
    """

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def with_units(
    program: Program, staged: PipelineProgram, rank: int, stage_kinds: Collection[int]
) -> tuple[Program, dict[tuple[int, str], StageUnit]]:
    """Return the units of stage kinds as entries of a program on the mesh of a rank.

    Returns
    -------
    program : Program
        The program, whose collectives run on the rank's mesh.
    units : dict of (int, str) to StageUnit
        The units by the number of the stage kind and by name.
    """
    functions = {name: fn.on(rank) for name, fn in program.functions.items()}
    units: dict[tuple[int, str], StageUnit] = {}
    for number in sorted(stage_kinds):
        stage_kind = staged.stage_kinds[number]
        for name, phases in unit_phases(stage_kind, staged.schedule).items():
            full = f"{stage_kind.name}/{name}"
            fn, inputs, outputs = _compose(stage_kind, phases, rank, functions)
            functions[full] = fn
            units[number, name] = StageUnit(full, inputs, outputs)
    entries = tuple(Entry(rank, unit.function) for unit in units.values())
    return Program(program.meshes, functions, entries), units


def _compose(
    stage_kind: StageKind, phases: Sequence[str], mesh: int, functions: Mapping[str, Function]
) -> tuple[Function, tuple[int, ...], tuple[int, ...]]:
    """Write the function that calls phases in turn; with the slots it reads and writes.

    A unit with collectives of a distributed optimizer is written out (:class:`OverlappedUnit`).
    """
    values: list[Value] = []
    at: dict[int, int] = {}
    inputs: dict[int, int] = {}
    outputs: dict[int, int] = {}
    calls: list[PhaseCall] = []

    def add(slot: int) -> int:
        values.append(stage_kind.slots[slot])
        return len(values) - 1

    for phase in filter(None, map(stage_kind.phase, phases)):
        for slot in phase.inputs:
            if slot not in at:
                at[slot] = inputs[slot] = add(slot)
        reads = tuple(at[slot] for slot in phase.inputs)
        for slot in phase.outputs:
            at[slot] = outputs[slot] = add(slot)
        writes = tuple(at[slot] for slot in phase.outputs)
        calls.append(PhaseCall(phase.name, phase.function, reads, writes))
    if not {GATHER, REDUCE}.isdisjoint(phases):
        ops = OverlappedUnit(functions, values).ops(calls)
    else:
        ops = [
            Op(call.phase, "call", call.function, call.inputs, call.outputs, callee=call.function)
            for call in calls
        ]
    fn = Function(mesh, tuple(inputs.values()), tuple(ops), tuple(outputs.values()), tuple(values))
    return fn, tuple(inputs), tuple(outputs)


def arriving(staged: PipelineProgram) -> Mapping[int, set[int]]:
    """Return, per stage kind, the slots that other stages write or read."""
    slots: dict[int, set[int]] = {number: set() for number in range(len(staged.stage_kinds))}
    for edge in staged.all_edges:
        for stage, slot in (edge.source, edge.target):
            slots[staged.stages[stage].role].add(slot)
    return slots
