# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Merge collectives of a kind on flattened and concatenated tensors (level 5).

An operand becomes a row per rank (a single row where every rank takes part in all of it), so that
tensors of any shape are placed side by side; the results are split and reshaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import known_shape, mesh_shape
from tvm_distir.core.ir.operators import call_axes, dist_op_name, ops
from tvm_distir.core.rewriting import BlockWriter


def one_for_all(
    writer: BlockWriter, members: Sequence[tuple[Any, ir.Call]], name: str = "bucket"
) -> None:
    """Write a single collective in place of several, and bind their variables.

    Parameters
    ----------
    writer : BlockWriter
    members : sequence of (Var, Call)
        Calls of ``all_reduce``, ``reduce_scatter`` or ``all_gather`` of the same kind, dtype,
        reduction and set of axes, on tensors of known shapes.
    name : str
        The name of the variables in between.
    """
    first = members[0][1]
    kind = str(dist_op_name(first))
    rows = [_row(writer, kind, var, call) for var, call in members]
    across = 0 if kind == "all_reduce" else 1
    joined = writer.emit(relax.op.concat(rows, across), f"{name}_terms")
    done = writer.emit(_collective(kind, first, joined), name)
    sizes = [int(row.ty.shape[across]) for row in rows]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    parts = writer.emit(relax.op.split(done, ends, across), f"{name}_parts")
    for number, (var, call) in enumerate(members):
        _bind_part(writer, kind, var, call, relax.TupleGetItem(parts, number))


def _group(call: ir.Call) -> int:
    sizes = mesh_shape(call.attrs["device_mesh"])
    return math.prod(sizes[a] for a in call_axes(call))


def _collective(kind: str, like: ir.Call, x: Any) -> ir.Call:
    mesh, axes = like.attrs["device_mesh"], call_axes(like)
    if kind == "all_reduce":
        return ops.all_reduce(x, mesh, axes, str(like.attrs["op"]))
    if kind == "reduce_scatter":
        return ops.reduce_scatter(x, mesh, axes, 0, str(like.attrs["op"]))
    return ops.all_gather(x, mesh, axes, 0)


def _row(writer: BlockWriter, kind: str, var: Any, call: ir.Call) -> Any:
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


def _shaped(writer: BlockWriter, x: Any, shape: Sequence[int], name: str) -> Any:
    if [int(n) for n in x.ty.shape] == list(shape):
        return x
    return writer.emit(relax.op.reshape(x, list(shape)), name)


def _bind_part(writer: BlockWriter, kind: str, var: Any, call: ir.Call, part: Any) -> None:
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
