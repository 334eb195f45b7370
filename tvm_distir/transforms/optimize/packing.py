# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Merge collectives of a kind on flattened and concatenated tensors (level 5).

An operand becomes a row per rank (a single row where every rank takes part in all of it), so that
tensors of any shape are placed side by side; the results are split and reshaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir import known_shape, mesh_shape
from tvm_distir.core.ir.operators import call_axes, dist_op_name, ops
from tvm_distir.core.rewriting import BlockWriter, variables


@dataclass
class Bucket:
    """Collectives that are merged, with their variables, operands and total bytes."""

    members: list[Var] = field(default_factory=list)
    operands: set[Var] = field(default_factory=set)
    size_bytes: int = 0


class BucketWriter:
    """Writer of a block's bindings, with each bucket at its last member and readers after it."""

    def __init__(self, writer: BlockWriter, buckets: Mapping[Var, Bucket]) -> None:
        self.writer, self.buckets = writer, buckets
        self.values: dict[Var, ir.Call] = {}
        self.members_of: dict[Var, set[int]] = {}
        self.pending: dict[int, list[int]] = {}
        self.left: dict[int, set[int]] = {}

    def run(self, rows: list[Any]) -> None:
        """Write all bindings."""
        number = {id(bucket): n for n, bucket in enumerate(self.buckets.values())}
        for position, (binding, var, value, _) in enumerate(rows):
            bucket = self.buckets.get(var)
            if bucket is not None:
                self.values[var] = value
                self.members_of[var] = {number[id(bucket)]}
                if bucket.members[-1].same_as(var):
                    members = [(member, self.values[member]) for member in bucket.members]
                    _one_for_all(self.writer, members)
                    self._let_go(number[id(bucket)], bucket, rows)
                continue
            deps: set[int] = set()
            for used in variables(value):
                deps |= self.members_of.get(used, set())
            if not deps:
                self.writer.bindings.append(binding)
                continue
            self.members_of[var] = deps
            self.left[position] = set(deps)
            for dep in deps:
                self.pending.setdefault(dep, []).append(position)

    def _let_go(self, number: int, bucket: Bucket, rows: list[Any]) -> None:
        for member in bucket.members:
            del self.members_of[member]
        for position in self.pending.pop(number, []):
            self.left[position].discard(number)
            binding, var = rows[position][:2]
            if self.left[position]:
                self.members_of[var] = self.left[position]
            else:
                del self.members_of[var]
                self.writer.bindings.append(binding)


def _one_for_all(writer: BlockWriter, members: Sequence[tuple[Any, ir.Call]]) -> None:
    """Write a single collective in place of several, and bind their variables.

    Parameters
    ----------
    writer : BlockWriter
    members : sequence of (Var, Call)
        Calls of ``all_reduce``, ``reduce_scatter`` or ``all_gather`` of the same kind, dtype,
        reduction and set of axes, on tensors of known shapes.
    """
    first = members[0][1]
    kind = str(dist_op_name(first))
    rows = [_row(writer, kind, var, call) for var, call in members]
    across = 0 if kind == "all_reduce" else 1
    joined = writer.emit(relax.op.concat(rows, across), "bucket_terms")
    done = writer.emit(_collective(kind, first, joined), "bucket")
    sizes = [int(row.ty.shape[across]) for row in rows]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    parts = writer.emit(relax.op.split(done, ends, across), "bucket_parts")
    for number, (var, call) in enumerate(members):
        _bind_part(writer, kind, var, call, relax.TupleGetItem(parts, number))


def _group(call: ir.Call) -> int:
    sizes = mesh_shape(call.attrs["device_mesh"])
    return math.prod(sizes[a] for a in call_axes(call))


def _collective(kind: str, like: ir.Call, x: Expr) -> ir.Call:
    mesh, axes = like.attrs["device_mesh"], call_axes(like)
    if kind == "all_reduce":
        return ops.all_reduce(x, mesh, axes, str(like.attrs["op"]))
    if kind == "reduce_scatter":
        return ops.reduce_scatter(x, mesh, axes, 0, str(like.attrs["op"]))
    return ops.all_gather(x, mesh, axes, 0)


def _row(writer: BlockWriter, kind: str, var: Var, call: ir.Call) -> Var:
    """Reshape an operand to ``(elements,)``, ``(ranks, elements of each)`` or ``(1, elements)``."""
    x, name = call.args[0], f"{var.name}_flat"
    shape = known_shape(x.ty) or ()
    if kind == "reduce_scatter":
        ranks, dim = _group(call), int(call.attrs["dim"])
        x = _to_front(writer, x, dim, ranks, name)
        want = [ranks, math.prod(shape) // ranks]
    else:
        want = [math.prod(shape)] if kind == "all_reduce" else [1, math.prod(shape)]
    return _shaped(writer, x, want, name)


def _to_front(writer: BlockWriter, x: Any, dim: int, ranks: int, name: str) -> Any:
    """Split a dim into a single block per rank, and move the blocks to the front."""
    if dim == 0:
        return x
    shape = [int(n) for n in x.ty.shape]
    blocks = [*shape[:dim], ranks, shape[dim] // ranks, *shape[dim + 1 :]]
    x = _shaped(writer, x, blocks, name)
    order = [dim, *(d for d in range(len(blocks)) if d != dim)]
    return writer.emit(relax.op.permute_dims(x, order), name)


def _shaped(writer: BlockWriter, x: Expr, shape: Sequence[int], name: str) -> Var:
    if [int(n) for n in x.ty.shape] == list(shape):
        return x
    return writer.emit(relax.op.reshape(x, list(shape)), name)


def _bind_part(writer: BlockWriter, kind: str, var: Var, call: ir.Call, part: Expr) -> None:
    """Bind a member to its part of the result, in its original shape."""
    shape, name = list(known_shape(var.ty) or ()), f"{var.name}_part"
    part = writer.builder.normalize(part)
    dim = int(call.attrs["dim"]) if kind == "all_gather" else 0
    if dim:
        # One row per rank: its block of the gathered dim, which goes back between the others.
        local_shape = [int(n) for n in call.args[0].ty.shape]
        rows = writer.emit(part, name)
        rows = writer.emit(relax.op.reshape(rows, [_group(call), *local_shape]), name)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(local_shape) + 1)]
        part = writer.builder.normalize(relax.op.permute_dims(rows, order))
    if [int(n) for n in part.ty.shape] != shape:
        part = relax.op.reshape(writer.emit(part, name), shape)
        part = writer.builder.normalize(part)
    writer.bind(var, part)
