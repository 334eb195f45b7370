# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write what ``runtime.disco.ShardLoader`` needs: which kernel divides each weight."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from tvm import ir, relax, te, tirx

from tvm_distir.core.ir import (
    R,
    Segments,
    ceil_div,
    is_private,
    local_shape,
    parse_placement,
    relax_functions,
)
from tvm_distir.core.ir.attributes import WORKERS_ATTR, num_input
from tvm_distir.core.ir.operators import free_name
from tvm_distir.support import ModelError, StringImm

SHARD_INFO = "get_shard_info"
"""The function of a module from which ``ShardLoader`` reads the kernels of its weights."""

_Layout = tuple[tuple[int, ...], str, tuple[int, ...], tuple[int, ...]]
"""The full shape, dtype and labels of a weight, and its segments as a list."""


def with_shard_info(mod: ir.IRModule, sizes: Sequence[int]) -> ir.IRModule:
    """Return the module with a kernel for each layout of sharded weights, and their table.

    A kernel takes a full weight, and returns the parts of all workers: ``(workers, *shard)``.
    Weights of one layout share a kernel; what has none is broadcast.

    Parameters
    ----------
    mod : IRModule
        A module with the attribute ``dist.workers``.
    sizes : sequence of int
        The sizes of the mesh's axes.
    """
    layouts: dict[str, _Layout | None] = {}
    for gv, fn in relax_functions(mod):
        for name, layout in () if is_private(fn) else _weights(fn):
            if layouts.setdefault(name, layout) != layout:
                problem = f'the weight "{name}" is sharded in another way than in other entries'
                remedy = "Give it one placement in the plan."
                raise ModelError("DIST0381", problem, location=str(gv.name_hint), remedy=remedy)
    functions = dict(mod.functions.items())
    names = {str(gv.name_hint) for gv in functions}
    kernels: dict[_Layout, str] = {}
    table = {}
    for name, layout in layouts.items():
        if layout is None:
            continue
        shape, dtype, labels, _ = layout
        if layout not in kernels:
            kernels[layout] = free_name(f"shard_{len(kernels)}", names)
            kernel = _kernel(layout, sizes).with_attr("global_symbol", kernels[layout])
            functions[ir.GlobalVar(kernels[layout])] = kernel
        parts = [math.prod(sizes), *local_shape(shape, labels, sizes)]
        table[name] = [[kernels[layout], [parts, dtype]]]
    builder = relax.BlockBuilder()
    with builder.function(SHARD_INFO, []):
        builder.emit_func_output(StringImm(json.dumps(table)))
    functions.update(builder.get().functions.items())
    return ir.IRModule(functions, attrs=mod.attrs)


def _weights(fn: relax.Function) -> list[tuple[str, _Layout | None]]:
    """Return the layouts of the weights of an entry by name; None: it is broadcast."""
    result: list[tuple[str, _Layout | None]] = []
    for port in fn.attrs[WORKERS_ATTR]["inputs"]:
        if int(port["index"]) < (num_input(fn) or 0):
            continue
        name, shape = str(port["name"]), port["shape"]
        labels = parse_placement(str(port["placement"]))
        if all(label == R for label in labels) or any(isinstance(n, str) for n in shape):
            result.append((name, None))
            continue
        segments = tuple(int(n) for n in port["segments"]) if "segments" in port else ()
        full = tuple(int(n) for n in shape)
        result.append((name, (full, str(port["dtype"]), tuple(labels), segments)))
    return result


def _kernel(layout: _Layout, sizes: Sequence[int]) -> tirx.PrimFunc:
    """Return the kernel that divides a weight of a layout; behind an uneven end are zeros."""
    shape, dtype, labels, numbers = layout
    segments = Segments.from_list(numbers) if numbers else None
    extents = [math.prod(sizes), *local_shape(shape, labels, sizes)]
    full = te.placeholder([tirx.IntImm("int64", n) for n in shape], dtype, name="full")

    def element(worker: tirx.Var, *at: tirx.Var) -> ir.Expr:
        positions, inside = [], []
        for dim, position in enumerate(at):
            position, conditions = _unsharded(position, dim, shape[dim], labels, sizes, worker)
            inside += conditions
            if segments is not None and dim == segments.dim:
                position = _uninterleaved(position, segments)
            positions.append(position)
        value = full(*positions)
        return (
            tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype)) if inside else value
        )

    parts = te.compute([tirx.IntImm("int64", int(n)) for n in extents], element, name="parts")
    return te.create_prim_func([full, parts], index_dtype_override="int64")


def _unsharded(
    position: ir.Expr,
    dim: int,
    extent: int,
    labels: Sequence[int],
    sizes: Sequence[int],
    worker: tirx.Var,
) -> tuple[ir.Expr, list[ir.Expr]]:
    """Return the position in a full dim of one in a shard, and where it is not in the padding."""
    axes = [a for a, label in enumerate(labels) if label == dim]
    blocks = [extent]
    for a in axes:
        blocks.append(int(ceil_div(blocks[-1], sizes[a])))
    conditions = []
    for number, a in reversed(list(enumerate(axes))):
        coordinate = worker // math.prod(sizes[a + 1 :]) % sizes[a]
        position = coordinate * blocks[number + 1] + position
        if blocks[number + 1] * sizes[a] != blocks[number]:
            conditions.append(position < blocks[number])
    return position, conditions


def _uninterleaved(position: ir.Expr, segments: Segments) -> ir.Expr:
    """Return the position in the original order of one in the order of interleaved segments."""
    width = sum(segments.pieces)
    part, offset = position // width, position % width
    first = at = 0
    result = offset
    for size, piece in zip(segments.sizes, segments.pieces, strict=True):
        moved = offset + part * piece + (first - at)
        result = moved if at == 0 else tirx.Select(offset < at, result, moved)
        at, first = at + piece, first + size
    return result
