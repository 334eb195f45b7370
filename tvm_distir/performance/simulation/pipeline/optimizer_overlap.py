# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let the collectives of a distributed optimizer overlap with the first and last micro-batch.

A pipelined step gathers weights before all micro-batches and reduces the sums of gradients behind
them. An optimizer that overlaps (``overlap_param_gather`` and ``overlap_grad_reduce`` of
Megatron-LM) waits for a weight where the first micro-batch needs it, and reduces a gradient as soon
as the last micro-batch has added to it, on a separate communicator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tvm_distir.performance.program.parts import Function, Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import (
    ACCUMULATE,
    BEGIN,
    END,
    FORWARD,
    GATHER,
    PART,
    REDUCE,
    Phase,
    StageKind,
)

CHANNEL = 1
"""The channel of these collectives, which do not queue with others."""


def with_optimizer_overlap(program: Program) -> Program:
    """Return a program whose stages gather weights and reduce gradients in separate phases.

    The collectives leave the phases before and behind all micro-batches. The first forward unit
    runs the phase ``gather``, and the last backward unit the phase ``reduce``
    (:func:`.unit_functions.with_units`). A step that stashes weights updates them behind every
    micro-batch, and stays as it is. So do reductions of what is computed from sums.

    Parameters
    ----------
    program : Program
        A pipelined step, its ops grouped to kernels.
    """
    staged = program.staged
    if staged is None or staged.schedule.stash:
        return program
    functions = dict(program.functions)
    stage_kinds = []
    for stage_kind in staged.stage_kinds:
        stage_kinds.append(_with_gathers(_with_reductions(stage_kind, functions), functions))
    return replace(
        program, functions=functions, staged=replace(staged, stage_kinds=tuple(stage_kinds))
    )


@dataclass
class _MovedOps:
    """Function of ops that are moved out of others, between slots of a stage kind.

    Attributes
    ----------
    values : list of Value
    ops : list of Op
    inputs, outputs : dict of int to int
        The value of each slot that is read, or written.
    """

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    inputs: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)

    def read(self, slot: int, value: Value) -> int:
        """Return the value that a slot is read as."""
        if slot not in self.inputs:
            self.inputs[slot] = self.add(value)
        return self.inputs[slot]

    def written(self, slot: int, value: Value) -> int:
        """Return a new value that is written to a slot."""
        self.outputs[slot] = self.add(value)
        return self.outputs[slot]

    def add(self, value: Value) -> int:
        """Add a value and return its index."""
        self.values.append(value)
        return len(self.values) - 1

    def phase(self, kind: str, stage_kind: StageKind, functions: dict[str, Function]) -> Phase:
        """Add the function, and return the phase that runs it."""
        name = f"{stage_kind.name}.{kind}"
        mesh = functions[stage_kind.phases[0].function].mesh
        functions[name] = Function(
            mesh, tuple(self.inputs.values()), tuple(self.ops), tuple(self.outputs.values()),
            tuple(self.values),
        )  # fmt: skip
        return Phase(kind, name, tuple(self.inputs), tuple(self.outputs))


def _with_reductions(stage_kind: StageKind, functions: dict[str, Function]) -> StageKind:
    """Return a stage kind with the phase ``reduce``, and replace the functions of its end."""
    accumulate = stage_kind.phase(ACCUMULATE)
    sums = set() if accumulate is None else set(accumulate.outputs)
    slots, moved, phases = list(stage_kind.slots), _MovedOps(), list[Phase]()
    for phase in stage_kind.phases:
        if phase.name != END and phase.name.partition(":")[0] != PART:
            phases.append(phase)
            continue
        fn = functions[phase.function]
        values: dict[int, int] = {}
        reductions = _reductions(fn, phase, sums)
        for op, sources in reductions:
            shares = zip(sources, op.outputs, _shares(op, fn), strict=True)
            for source, output, payload_bytes in shares:
                slots.append(Value(*fn.values[output][:4]))
                values[output] = len(slots) - 1
                read = moved.read(source, stage_kind.slots[source])
                write = moved.written(values[output], slots[-1])
                moved.ops.append(
                    op._replace(
                        inputs=(read,), outputs=(write,), payload_bytes=payload_bytes,
                        channel=CHANNEL,
                    )
                )  # fmt: skip
        removed = {id(op) for op, _ in reductions}
        functions[phase.function] = replace(
            fn,
            params=(*fn.params, *values),
            ops=tuple(op for op in fn.ops if id(op) not in removed),
        )
        phases.append(replace(phase, inputs=(*phase.inputs, *values.values())))
    if not moved.ops:
        return stage_kind
    position = next(n for n, p in enumerate(phases) if p.name.partition(":")[0] in (PART, END))
    phases.insert(position, moved.phase(REDUCE, stage_kind, functions))
    return replace(stage_kind, slots=tuple(slots), phases=tuple(phases))


def _reductions(fn: Function, phase: Phase, sums: set[int]) -> list[tuple[Op, list[int]]]:
    """Return the started reductions of sums over micro-batches, with the slots of the sums."""
    slot_of = {p: slot for p, slot in zip(fn.params, phase.inputs, strict=True) if slot in sums}
    result = []
    for op in fn.ops:
        if op.kind == "view" and op.inputs[0] in slot_of:
            slot_of[op.outputs[0]] = slot_of[op.inputs[0]]
        elif op.is_start and 0 < len(op.inputs) == len(op.outputs):
            if all(value in slot_of for value in op.inputs):
                result.append((op, [slot_of[value] for value in op.inputs]))
    return result


def _shares(op: Op, fn: Function) -> list[int]:
    """Return the payload of each result of a collective, in the proportion of their bytes."""
    sizes = [fn.values[value].bytes for value in op.outputs]
    total, before, shares = max(sum(sizes), 1), 0, list[int]()
    for size in sizes:
        before += size
        shares.append(op.payload_bytes * before // total - sum(shares))
    return shares


def _with_gathers(stage_kind: StageKind, functions: dict[str, Function]) -> StageKind:
    """Return a stage kind with the phase ``gather``, and replace the function of its beginning."""
    begin, forward = stage_kind.phase(BEGIN), stage_kind.phase(FORWARD)
    if begin is None or forward is None:
        return stage_kind
    fn = functions[begin.function]
    slot_of = dict(zip(fn.params, begin.inputs, strict=True))
    result_of = dict(zip(fn.results, begin.outputs, strict=True))
    classes = {op.kernel_class for op in _collectives_behind(stage_kind, functions)}
    starts = {
        op.outputs[0]: op
        for op in fn.ops
        if op.is_start and len(op.inputs) == len(op.outputs) == 1 and op.inputs[0] in slot_of
    }
    readers = [value for op in fn.ops for value in op.inputs]
    moved, removed = _MovedOps(), set[int]()
    for wait in fn.ops:
        start = starts.get(wait.inputs[0]) if wait.kind == "wait" else None
        if start is None or wait.outputs[0] not in result_of or wait.outputs[0] in readers:
            continue
        source, target = slot_of[start.inputs[0]], result_of[wait.outputs[0]]
        flying = moved.add(fn.values[start.outputs[0]])
        read = moved.read(source, stage_kind.slots[source])
        write = moved.written(target, stage_kind.slots[target])
        kernel_class = next(iter(classes)) if len(classes) == 1 else start.kernel_class
        moved.ops += [
            start._replace(
                inputs=(read,), outputs=(flying,), kernel_class=kernel_class, channel=CHANNEL
            ),
            wait._replace(inputs=(flying,), outputs=(write,)),
        ]
        removed.update((id(start), id(wait)))
    if not moved.ops:
        return stage_kind
    remaining = [(v, s) for v, s in result_of.items() if s not in moved.outputs]
    functions[begin.function] = replace(
        fn,
        ops=tuple(op for op in fn.ops if id(op) not in removed),
        results=tuple(value for value, _ in remaining),
    )
    phases = [
        replace(phase, outputs=tuple(slot for _, slot in remaining)) if phase is begin else phase
        for phase in stage_kind.phases
    ]
    phases.insert(phases.index(forward), moved.phase(GATHER, stage_kind, functions))
    return replace(stage_kind, phases=tuple(phases))


def _collectives_behind(stage_kind: StageKind, functions: dict[str, Function]) -> Iterable[Op]:
    """Yield the collectives of the phases behind all micro-batches, and of their reductions."""
    for phase in stage_kind.phases:
        if phase.name.partition(":")[0] in (REDUCE, PART, END):
            yield from (op for op in functions[phase.function].ops if op.kind == "collective")
