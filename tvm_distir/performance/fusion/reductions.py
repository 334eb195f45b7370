# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite gradient reductions and stage messages as a framework performs them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Function, Op, reached
from tvm_distir.performance.program.pipeline_program import Edge, PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import (
    ACCUMULATE,
    ADD,
    BACKWARD,
    END,
    NEXT,
    PART,
    WEIGHT,
    StageKind,
)

from .dataflow import Dataflow
from .profile import Profile

GRADIENTS = "gradients"
"""Kernel class of collectives behind all micro-batches."""
HALF = ("float16", "bfloat16")


def reduced(program: Program, profile: Profile) -> Program:
    """Make sums and messages of a pipelined step as a profile says; other programs stay."""
    if program.staged is None:
        return program
    staged = program.staged
    functions = dict(program.functions)
    later: dict[str, list[Op]] = {}
    if profile.once:
        data = {axis for stage_kind in staged.stage_kinds for axis in _data_axes(stage_kind)}
        ends = {phase.function for stage_kind in staged.stage_kinds for phase in stage_kind.phases}
        for name in _called(functions, staged, (BACKWARD, WEIGHT, END)):
            if name not in ends:
                functions[name], later[name] = _later(functions[name], data)
    if profile.sums == "weight":
        staged = _Narrowing(functions, staged).run()
    for name in _called(functions, staged, (END, PART, ADD)):
        if profile.bucket:
            functions[name] = _bucketed(functions[name])
        functions[name] = _marked(functions[name])
    for stage_kind in staged.stage_kinds if later else ():
        _at_the_end(functions, stage_kind, later)
    edges = staged.edges
    if profile.split_sends:
        edges = tuple(_split(edge, program.meshes, staged) for edge in edges)
    staged = dataclasses.replace(staged, edges=edges)
    return dataclasses.replace(program, functions=functions, staged=staged)


def _called(
    functions: dict[str, Function], staged: PipelineProgram, phases: tuple[str, ...]
) -> set[str]:
    todo = [
        phase.function
        for stage_kind in staged.stage_kinds
        for phase in stage_kind.phases
        if phase.name.partition(":")[0] in phases
    ]
    return reached(functions, todo)


def _data_axes(stage_kind: StageKind) -> set[int]:
    """Return the axes that shard the data of a stage kind."""
    data_axes: set[int] = set()
    for slot in stage_kind.params:
        value = stage_kind.slots[slot]
        if value.role == "input" and value.placement:
            labels = [label.strip() for label in value.placement.split(", ")]
            data_axes.update(axis for axis, label in enumerate(labels) if label.startswith("S"))
    return data_axes


def _later(fn: Function, data: set[int]) -> tuple[Function, list[Op]]:
    """Leave out sums over the data's axes that the function only passes on, or only gets."""
    flow = Dataflow(fn, True)
    ops: list[Op] = []
    left: list[Op] = []
    for op in fn.ops:
        over_data = op.kind == "collective" and op.collective == "all_reduce"
        if over_data and bool(op.mesh_axes) and data.issuperset(op.mesh_axes):
            ready = all(flow.source[value] in fn.params for value in op.inputs)
            readers = [n for value in op.outputs for n in flow.readers.get(value, ())]
            if ready or all(flow.is_cast(n) for n in readers):
                left.append(op)
                op = Op(op.name, "view", op.op, op.inputs, op.outputs)
        ops.append(op)
    return dataclasses.replace(fn, ops=tuple(ops)), left


def _at_the_end(
    functions: dict[str, Function], stage_kind: StageKind, later: dict[str, list[Op]]
) -> None:
    """Make the sums that were left out with those behind all micro-batches."""
    phases = [stage_kind.phase(name) for name in (BACKWARD, WEIGHT, END)]
    end = phases[-1]
    if end is None:
        return
    sizes: dict[tuple[int, ...], int] = {}
    example: dict[tuple[int, ...], Op] = {}
    for phase in phases:
        for op in () if phase is None else _run(functions, phase.function, later):
            sizes[op.mesh_axes] = sizes.get(op.mesh_axes, 0) + op.payload_bytes
            example[op.mesh_axes] = op
    fn = functions[end.function]
    ops = list(fn.ops)
    for axes, size in sizes.items():
        at = next((n for n, op in enumerate(ops) if _sums(op, axes)), None)
        if at is None:
            ops.insert(
                0, example[axes]._replace(inputs=(), outputs=(), payload_bytes=size,
                kernel_class=GRADIENTS)
            )  # fmt: skip
        else:
            ops[at] = ops[at]._replace(payload_bytes=ops[at].payload_bytes + size)
    functions[end.function] = dataclasses.replace(fn, ops=tuple(ops))


def _run(
    functions: Mapping[str, Function], name: str, later: Mapping[str, list[Op]]
) -> Iterator[Op]:
    """Yield the sums left out of a function and its callees, as often as they run."""
    yield from later.get(name, ())
    for op in functions[name].ops:
        for callee in op.callees[:1]:
            yield from _run(functions, callee, later)


def _sums(op: Op, axes: tuple[int, ...]) -> bool:
    return op.kind == "collective" and op.collective == "all_reduce" and op.mesh_axes == axes


def _bucketed(fn: Function) -> Function:
    """Merge the sums of the function's parameters: they are ready at once."""
    flow = Dataflow(fn, True)
    params, buckets = set(fn.params), dict[tuple[str, int, tuple[int, ...]], list[Op]]()
    for op in fn.ops:
        if op.kind == "collective" and {flow.source[v] for v in op.inputs} <= params:
            buckets.setdefault((op.collective, op.mesh, op.mesh_axes), []).append(op)
    joined = {id(op): bucket for bucket in buckets.values() for op in bucket if len(bucket) > 1}
    if not joined:
        return fn
    rest = [op for op in fn.ops if id(op) not in joined]
    sources = {flow.source[v] for bucket in joined.values() for op in bucket for v in op.inputs}
    views = [op for op in rest if op.kind == "view" and flow.source[op.inputs[0]] in sources]
    head: list[Op] = [
        bucket[0]._replace(
            inputs=tuple(v for op in bucket for v in op.inputs),
            outputs=tuple(v for op in bucket for v in op.outputs),
            payload_bytes=sum(op.payload_bytes for op in bucket),
        )
        for bucket in {id(bucket): bucket for bucket in joined.values()}.values()
    ]
    known = {id(op) for op in views}
    ops = [*views, *head, *(op for op in rest if id(op) not in known)]
    return dataclasses.replace(fn, ops=tuple(ops))


def _marked(fn: Function) -> Function:
    ops = [op._replace(kernel_class=GRADIENTS) if op.kind == "collective" else op for op in fn.ops]
    return dataclasses.replace(fn, ops=tuple(ops))


def _split(edge: Edge, meshes: tuple[Mesh, ...], staged: PipelineProgram) -> Edge:
    """Send values that several devices hold alike in parts."""
    mesh = meshes[staged.schedule.rank_of[edge.source[0]]]
    labels = [label.strip() for label in edge.placements[0].split(", ")]
    replicas = math.prod(
        size for size, label in zip(mesh.shape, labels, strict=True) if label == "R"
    )
    return dataclasses.replace(edge, split=replicas) if replicas > 1 else edge


class _Narrowing:
    """Rewriter that gives sums over micro-batches the type of their terms.

    Parameters
    ----------
    functions : dict of str to Function
        The functions, which are replaced.
    staged : PipelineProgram
    """

    def __init__(self, functions: dict[str, Function], staged: PipelineProgram) -> None:
        self.functions, self.staged = functions, staged
        self._cache: dict[str, set[int]] = {}

    def run(self) -> PipelineProgram:
        """Narrow each phase and return the stages with narrower slots and messages."""
        stage_kinds = []
        slots: list[set[int]] = []
        for stage_kind in self.staged.stage_kinds:
            narrow: set[int] = set()
            for phase in stage_kind.phases:
                if phase.name.partition(":")[0] in (ACCUMULATE, NEXT, PART, ADD, END):
                    fn = self.functions[phase.function]
                    narrow_params = {
                        p for p, s in zip(fn.params, phase.inputs, strict=True) if s in narrow
                    }
                    begins = phase.name in (ACCUMULATE, NEXT)
                    indices = self._function(phase.function, narrow_params, begins)
                    narrow.update(s for r, s in enumerate(phase.outputs) if r in indices)
                    narrow.update({total for part, total in stage_kind.sums if part in narrow})
            narrowed_slots = [
                slot._replace(dtype="float16", bytes=slot.bytes // 2) if n in narrow else slot
                for n, slot in enumerate(stage_kind.slots)
            ]
            stage_kinds.append(dataclasses.replace(stage_kind, slots=tuple(narrowed_slots)))
            slots.append(narrow)
        sums = tuple(
            dataclasses.replace(
                stage_sum, edges=tuple(self._edge(edge, slots) for edge in stage_sum.edges)
            )
            for stage_sum in self.staged.sums
        )
        return dataclasses.replace(self.staged, stage_kinds=tuple(stage_kinds), sums=sums)

    def _edge(self, edge: Edge, slots: list[set[int]]) -> Edge:
        stage, slot = edge.source
        if slot not in slots[self.staged.stages[stage].role]:
            return edge
        sizes = [(b[0] // 2, b[1] // 2) for b in (edge.bytes, edge.wire_bytes)]
        return dataclasses.replace(edge, bytes=sizes[0], wire_bytes=sizes[1])

    def _function(self, name: str, narrow_params: set[int], begins: bool) -> set[int]:
        """Narrow the values of a function once and return the indices of its narrow results."""
        if name in self._cache or not (narrow_params or begins):
            return self._cache.get(name, set())
        fn = self.functions[name]
        narrow, ops = set(narrow_params), list[Op]()
        for op in fn.ops:
            inside = [k for k, value in enumerate(op.inputs) if value in narrow]
            if op.kind == "call":
                callee = self.functions[op.callee]
                indices = self._function(op.callee, {callee.params[k] for k in inside}, begins)
                narrow.update(op.outputs[r] for r in indices)
            elif begins and op.op == "relax.astype":
                have, want = (fn.values[v].dtype for v in (op.inputs[0], op.outputs[0]))
                if have in HALF and want == "float32":
                    op = Op(op.name, "view", op.op, op.inputs, op.outputs)
                    narrow.update(op.outputs)
            elif inside and (begins or op.kind in ("collective", "view") or op.op == "relax.add"):
                keeps = len(inside) == len(op.inputs)
                narrow.update(op.outputs if keeps else ())
                half = op.payload_bytes // 2 if keeps else op.payload_bytes
                op = op._replace(payload_bytes=half)
            less = sum(fn.values[v].bytes // 2 for v in op.inputs if v in narrow)
            written_bytes = sum(fn.values[v].bytes // 2 for v in op.outputs if v in narrow)
            if op.kind == "compute":
                op = op._replace(
                    bytes_read=max(op.bytes_read - less, 0),
                    bytes_written=op.bytes_written - written_bytes,
                )
            ops.append(op)
        values = [
            v._replace(dtype="float16", bytes=v.bytes // 2)
            if n in narrow and v.dtype == "float32"
            else v
            for n, v in enumerate(fn.values)
        ]
        self.functions[name] = dataclasses.replace(fn, ops=tuple(ops), values=tuple(values))
        self._cache[name] = {r for r, value in enumerate(fn.results) if value in narrow}
        return self._cache[name]
