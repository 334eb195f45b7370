# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write level-5 collectives with padding before a split and slicing after a concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import (
    Labels,
    is_padded_inside,
    local_shape,
    parse_placement,
    placement_text,
)
from tvm_distir.core.ir.types import static_shape
from tvm_distir.core.ops.dims import same, size_bytes
from tvm_distir.core.passes.legalize.collective_calls import step_call
from tvm_distir.core.redistribution.costs import LAUNCH_BYTES
from tvm_distir.core.redistribution.planner import Planner
from tvm_distir.core.redistribution.shards import TermsMove, lacking_elements, split_dims
from tvm_distir.core.redistribution.steps import KINDS, exchange_step
from tvm_distir.core.rewriting.writer import BlockWriter
from tvm_distir.support import LoweringError

_PLAIN = Planner(kinds=[kind for kind in KINDS if kind != "exchange"])
REDUCE = {"sum": relax.op.sum, "max": relax.op.max, "min": relax.op.min, "prod": relax.op.prod}
BOOLEAN = {"sum": "max", "max": "max", "min": "min", "prod": "min"}
"""Reductions of truth values: sum and max are "or", prod and min "and"."""
WIDER = {"float16": "float32", "bfloat16": "float32", "bool": "int8"}
"""The types in which short types, and truth values, are reduced, as the engines do."""


def padded(writer: BlockWriter, x: ir.Expr, dim: int, count: int, name: str) -> ir.Expr:
    """Append zeros along a dim until ``count`` divides it."""
    shape = list(static_shape(x.ty) or ())
    missing = -shape[dim] % count
    if not missing:
        return x
    if str(x.ty.dtype) == "bool":
        shape[dim] = missing
        zeros = writer.emit(relax.op.zeros(shape, "bool"), f"{name}_pad")
        return writer.emit(relax.op.concat([x, zeros], dim), f"{name}_pad")
    widths = [0] * (2 * len(shape))
    widths[2 * dim + 1] = missing
    return writer.emit(relax.op.nn.pad(x, widths), f"{name}_pad")


def _extent(x: ir.Expr, dim: int) -> int | ir.Expr:
    """Return a dim of a local tensor, an int where it has a size."""
    return (static_shape(x.ty) or ())[dim]


def cut_off(x: ir.Expr, dim: int, size: int) -> ir.Call:
    """Keep the first ``size`` elements of a dim (a call, or x itself)."""
    return x if same(_extent(x, dim), size) else relax.op.strided_slice(x, [dim], [0], [size])


def parted(writer: BlockWriter, x: ir.Expr, dim: int, parts: Sequence[int], name: str) -> ir.Expr:
    """Pad a dim so that equal parts of it are the shards of axes with so many devices.

    Where the blocks of an axis do not hold whole shards, each is padded for itself.
    """
    extent = _extent(x, dim)
    if not isinstance(extent, int):  # a symbolic dim is divided without a remainder
        return x
    if not is_padded_inside(extent, parts):
        return padded(writer, x, dim, math.prod(parts), name)
    at = dim
    for k in parts:
        x = padded(writer, x, at, k, name)
        shape = list(static_shape(x.ty) or ())
        shape[at : at + 1] = [k, shape[at] // k]
        x = writer.emit(relax.op.reshape(x, shape), f"{name}_blocks")
        at += 1
    shape[dim : at + 1] = [math.prod(shape[dim : at + 1])]
    return writer.emit(relax.op.reshape(x, shape), f"{name}_pad")


def join_shards(
    writer: BlockWriter, call: ir.Call, dim: int, parts: Sequence[int], size: int, name: str
) -> ir.Call:
    """Leave the padding out of shards that lie consecutively: :func:`parted` undone."""
    call = writer.builder.normalize(call)
    if same(_extent(call, dim), size):
        return call
    x = writer.emit(call, f"{name}_padded")
    if not is_padded_inside(size, parts):
        return cut_off(x, dim, size)
    blocks = [size]
    for k in parts:
        blocks.append(-(-blocks[-1] // k))
    full = list(static_shape(x.ty) or ())
    for number in range(len(parts) - 1, -1, -1):
        shape = list(full)
        shape[dim : dim + 1] = [math.prod(parts[:number]), parts[number] * blocks[number + 1]]
        x = writer.emit(relax.op.reshape(x, shape), f"{name}_blocks")
        cut = cut_off(x, dim + 1, blocks[number])
        x = x if cut is x else writer.emit(cut, f"{name}_blocks")
    full[dim] = size
    return relax.op.reshape(x, full)


def sliced(
    writer: BlockWriter, x: Expr, mesh: DeviceMesh, labels: Labels, full: Sequence[int], name: str
) -> ir.Expr:
    """Slice the device's shard out of a full local tensor (a constant)."""
    sizes = [int(n) for n in mesh.shape]
    for dim in range(len(full)):
        axes = [a for a, label in enumerate(labels) if label == dim and sizes[a] > 1]
        if axes:
            x = parted(writer, x, dim, [sizes[a] for a in axes], name)
            x = writer.emit(ops.local_slice(x, mesh, axes, dim), name)
    return x


def collective(
    writer: BlockWriter, kind: str, attrs: Any, x: ir.Expr, want: Sequence[int], name: str
) -> ir.Call:
    """Write a collective of level 4 on a local tensor.

    Parameters
    ----------
    writer : BlockWriter
    kind : str
        Op name without prefix.
    attrs : mapping
        Attributes of the call.
    x : expression
        Local operand.
    want : sequence of int
        Local shape of the result.
    name : str
        Name for intermediate variables.

    Returns
    -------
    result : expression
        The collective call, or ``x`` itself where the group is a single device.
    """
    mesh = attrs["device_mesh"]
    sizes = [int(n) for n in mesh.shape]
    if kind in ("all_reduce", "partial"):
        axes = [int(a) for a in attrs["mesh_axes"] if sizes[int(a)] > 1]
        make = ops.all_reduce if kind == "all_reduce" else ops.partial
        return make(x, mesh, axes, str(attrs["op"])) if axes else x
    axis = attrs["mesh_axes"] if "mesh_axes" in attrs else attrs["mesh_axis"]
    parts = [sizes[int(a)] for a in ([axis] if isinstance(axis, int) else sorted(axis))]
    if math.prod(parts) == 1:
        return x
    if kind == "exchange":
        ends = str(attrs["placement"]), str(attrs["peer_placement"])
        full = tuple(int(n) for n in attrs["shape"])
        plain = _split_exchange(writer, x, mesh, ends, full, want, name)
        return ops.exchange(x, mesh, axis, *ends, full) if plain is None else plain
    if kind == "all_gather":
        dim = int(attrs["dim"])
        call = ops.all_gather(x, mesh, axis, dim)
        return join_shards(writer, call, dim, parts, want[dim], name)
    if kind == "local_slice":
        dim = int(attrs["dim"])
        return ops.local_slice(parted(writer, x, dim, parts, name), mesh, axis, dim)
    if kind == "reduce_scatter":
        dim = int(attrs["dim"])
        x = parted(writer, x, dim, parts, name)
        return ops.reduce_scatter(x, mesh, axis, dim, str(attrs["op"]))
    if kind == "all_to_all":
        gather, split = int(attrs["gather_dim"]), int(attrs["split_dim"])
        x = parted(writer, x, split, parts, name)
        call = ops.all_to_all(x, mesh, axis, gather, split)
        return join_shards(writer, call, gather, parts, want[gather], name)
    wrap = "wrap" in attrs and bool(attrs["wrap"])
    return ops.collective_permute(x, mesh, axis, int(attrs["shift"]), wrap)


def _split_exchange(
    writer: BlockWriter,
    x: ir.Expr,
    mesh: DeviceMesh,
    ends: tuple[str, str],
    full: tuple[int, ...],
    want: Sequence[int],
    name: str,
) -> ir.Expr | None:
    """Write an exchange as plain collectives; None where they would send more bytes.

    With a dim for each of the axes that shard a dim together, an ``all_to_all`` moves any of them.
    """
    sizes, dtype = [int(n) for n in mesh.shape], str(x.ty.dtype)
    before, after = map(parse_placement, ends)
    split = split_dims(full, before, after, sizes)
    if split is None:
        return None
    shape, at, after = split
    most_bytes = size_bytes((lacking_elements(shape, at, after, sizes),), dtype)
    try:
        plan = _PLAIN.plan(shape, at, after, sizes, dtype)
    except LoweringError:  # no plain collectives stay within the memory of both ends
        return None
    if plan.cost > most_bytes + LAUNCH_BYTES * len(plan.steps):
        return None
    if shape != full:
        x = writer.emit(relax.op.reshape(x, local_shape(shape, at, sizes)), f"{name}_blocks")
    for step in plan.steps:
        x, at = writer.emit(step_call(x, mesh, step, at, shape), f"{name}_blocks"), step.after
    return x if shape == full else relax.op.reshape(x, want)


def reduced_terms(writer: BlockWriter, move: TermsMove, attrs: Any, x: Any, name: str) -> Any:
    """Write a ``reduce_scatter`` whose shards are no parts of its groups' blocks.

    Each device receives the terms of its new shard from the devices that hold them, and reduces
    them.

    Parameters
    ----------
    writer : BlockWriter
    move : TermsMove
    attrs : mapping
        Attributes of the call at level 4.
    x : expression
        Local operand.
    name : str
        Name for intermediate variables.

    Returns
    -------
    result : call
    """
    axes = exchange_step(move.before, move.after).axes
    ends = placement_text(move.before), placement_text(move.after)
    term = writer.emit(relax.op.expand_dims(x, 0), f"{name}_term")
    terms = ops.exchange(term, attrs["device_mesh"], axes, *ends, move.shape)
    terms, dtype = writer.emit(terms, f"{name}_terms"), str(x.ty.dtype)
    wide = WIDER.get(dtype, dtype)
    if wide != dtype:
        terms = writer.emit(relax.op.astype(terms, wide), f"{name}_terms")
    done = REDUCE[BOOLEAN[str(attrs["op"])] if dtype == "bool" else str(attrs["op"])](terms, 0)
    return done if wide == dtype else relax.op.astype(writer.emit(done, name), dtype)
