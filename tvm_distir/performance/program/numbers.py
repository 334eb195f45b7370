# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Separate the numbers of a step from its structure."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .parts import Function, Value
from .pipeline_program import PipelineProgram
from .program import Program

OP_NUMBERS = 4
"""The numbers of an op: FLOPs, bytes moved, payload, size of the group. In the place of the payload
a transfer has its bytes on the wire."""
EDGE_NUMBERS = 5
"""The numbers of an edge: bytes and bytes on the wire at either end, parts that it is sent in."""


@dataclass
class Numbers:
    """All numbers of a program, in an order that follows from the rest.

    Attributes
    ----------
    skeleton : str
        Digest of the rest. Not part of it: numbers of micro-batches, meshes' sizes and devices.
    values : list of int
    op_at : dict of str to list of int
        The position of the :data:`OP_NUMBERS` of each function and op.
    value_at : dict of str to list of int
        The position of the bytes of each function and value.
    slot_at : list of list of int
        The position of the bytes of each stage kind and slot.
    dims_at : dict of str to list of int
        The position of the dims of each function and value, from ``dims_from`` on.
    edge_at : list of int
        The position of the :data:`EDGE_NUMBERS` of the edges, then of those of sums.
    dims_from : int
        The position from which on the numbers are dims of tensors.
    """

    skeleton: str = ""
    values: list[int] = field(default_factory=list)
    op_at: dict[str, list[int]] = field(default_factory=dict)
    value_at: dict[str, list[int]] = field(default_factory=dict)
    slot_at: list[list[int]] = field(default_factory=list)
    dims_at: dict[str, list[int]] = field(default_factory=dict)
    edge_at: list[int] = field(default_factory=list)
    dims_from: int = 0


def numbers_of(program: Program) -> Numbers:
    """Extract the numbers of a program."""
    numbers, digest = Numbers(), hashlib.sha256()
    dims: list[int] = []
    for name, fn in program.functions.items():
        digest.update(repr((name, fn.mesh, fn.params, fn.results)).encode())
        ends = [len(dims), *(len(value.shape) for value in fn.values)]
        numbers.dims_at[name] = list(itertools.accumulate(ends))[:-1]
        numbers.value_at[name] = list(_values(numbers, dims, digest, fn.values))
        numbers.op_at[name] = list(_ops(numbers, digest, fn))
    if program.staged is not None:
        _stages(numbers, dims, digest, program.staged)
    digest.update(repr([mesh.axes for mesh in program.meshes]).encode())
    numbers.dims_from = len(numbers.values)
    numbers.values += dims
    numbers.skeleton = digest.hexdigest()
    return numbers


def _stages(numbers: Numbers, dims: list[int], digest: Any, staged: PipelineProgram) -> None:
    """Add the numbers of stages and of the messages between them."""
    for stage_kind in staged.stage_kinds:
        rest = (
            stage_kind.name,
            stage_kind.params,
            stage_kind.results,
            stage_kind.sums,
            stage_kind.updates,
            stage_kind.phases,
        )
        digest.update(repr(rest).encode())
        numbers.slot_at.append(list(_values(numbers, dims, digest, stage_kind.slots)))
    schedule = staged.schedule
    order = (schedule.kind, schedule.stages, schedule.chunks, schedule.rank_of, schedule.stash)
    sums = [(stage_sum.name, stage_sum.stages, len(stage_sum.edges)) for stage_sum in staged.sums]
    digest.update(repr((order, staged.stages, sums)).encode())
    for edge in staged.all_edges:
        digest.update(repr((edge.source, edge.target, edge.direction)).encode())
        numbers.edge_at.append(len(numbers.values))
        numbers.values += [*edge.bytes, *edge.wire_bytes, edge.split]


def _values(
    numbers: Numbers, dims: list[int], digest: Any, values: Iterable[Value]
) -> Iterator[int]:
    for value in values:
        digest.update(f"{value.dtype} {value.role} {len(value.shape)};".encode())
        dims += value.shape
        numbers.values.append(value.bytes)
        yield len(numbers.values) - 1


def _ops(numbers: Numbers, digest: Any, fn: Function) -> Iterator[int]:
    for op in fn.ops:
        rest = (
            op.kind, op.op, op.inputs, op.outputs, op.modelled, op.kernel_class, op.dtype,
            op.callee, op.otherwise, op.collective, op.mesh, op.mesh_axes, op.tag, op.peer_mesh,
            op.selects,
        )  # fmt: skip
        digest.update(repr(rest).encode())
        payload = op.wire_bytes if op.kind == "transfer" else op.payload_bytes
        numbers.values += [op.flops, op.bytes_read + op.bytes_written, payload, op.group_size]
        yield len(numbers.values) - OP_NUMBERS
