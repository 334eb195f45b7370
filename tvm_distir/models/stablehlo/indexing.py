# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate gathers, scatters, and slices at computed offsets."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.hlo_names import SCATTERS
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of

from .dimensions import IndexDims, index_dims_of, inside_of
from .operation_call import Converter, HloCall
from .reductions import applied
from .shapes import sliced
from .translated_values import Tensors, TranslatedTensor, constant

_op = relax.op
_GATHER = (
    "offset_dims collapsed_slice_dims start_index_map operand_batching_dims "
    "start_indices_batching_dims"
).split()
_SCATTER = (
    "update_window_dims inserted_window_dims scatter_dims_to_operand_dims input_batching_dims "
    "scatter_indices_batching_dims"
).split()
_REDUCTIONS = {theirs: name for name, theirs in SCATTERS.items()}


def _gather(call: HloCall) -> TranslatedTensor:
    """Translate to ``take`` for rows, to ``gather_elements`` in rows, else to flat indices."""
    write, numbers = call.write, call.numbers("dimension_numbers")
    sizes = call.integers("slice_sizes")
    dims = index_dims_of(numbers, _GATHER, call[0].shape, sizes, call.shape)
    table, indices = call.full(0), call.full(1)
    if dims.is_of_rows:
        return TranslatedTensor(_rows(call, dims, table, indices), call.shape)
    if dims.is_along_last:
        last = len(dims.table) - 1
        near = write.clipped(dims.row_indices(write, indices), dims.table[last] - 1)
        many = write.reshape(near, [*dims.table[:last], math.prod(shape_of(near)[last:])])
        gathered = write.emit(_op.gather_elements(table, many, axis=last))
        return TranslatedTensor(write.reshape(gathered, call.shape), call.shape)
    flat, _ = dims.flat(write, indices, clip=True)
    return write.value(write.emit(_op.take(write.rows_flat(table), flat, axis=0, mode="clip")))


def _rows(call: HloCall, dims: IndexDims, table: Expr, indices: Expr) -> Expr:
    write, axis = call.write, dims.indexed[0]
    near = dims.row_indices(write, indices)
    count = len(shape_of(near))
    rows = write.emit(_op.take(table, near, axis=axis, mode="clip"))
    rest = [("window", i) for i in range(len(dims.table) - 1)]
    have = rest[:axis] + [("index", i) for i in range(count)] + rest[axis:]
    kinds = ["window" if d in dims.windows else "index" for d in range(len(dims.result))]
    needed_rows = [(kind, kinds[:d].count(kind)) for d, kind in enumerate(kinds)]
    return write.permute(rows, [have.index(item) for item in needed_rows])


def _scatter(call: HloCall) -> TranslatedTensor:
    """Translate to a look-up gradient, a mask for an element per row, else to flat indices."""
    if len(call.operands) != 3:
        raise Unsupported("a scatter into several tensors")
    kind = _combine_written(call)
    updates = call[2].shape
    dims = _scattered(call, updates)
    if kind == "add" and dims.is_of_rows and dims.indexed == [0]:
        front = len(updates) - len(dims.kept)
        if dims.windows == list(range(front, len(updates))) and "float" in call.dtype:
            return _added_rows(call, dims)
    if dims.is_along_last and len(updates) == len(dims.table) and kind in ("add", "update"):
        if updates[-1] == 1:
            return _masked(call, dims, kind)
    write, indices = call.write, call.full(1)
    flat, inside = dims.flat(write, indices, clip=False)
    count = math.prod(dims.table)
    if inside is not None:
        flat = write.emit(_op.where(inside, flat, constant(count, "int64")))
    table = write.pad(write.rows_flat(call.full(0)), [0], [1])
    flat, new = write.rows_flat(flat), write.rows_flat(call.full(2))
    scattered = write.emit(_op.scatter_elements(table, flat, new, axis=0, reduction=kind))
    return write.value(write.reshape(write.slice(scattered, [0], [count]), call.shape))


def _combine_written(call: HloCall) -> str:
    """Combine an element with the value written to it."""
    block = call.region()
    names = [argument.name for argument in block.arguments]
    if len(block.operations) == 1 and block.operations[0].operands == names[1:]:
        return "update"
    kind = applied(block)
    if kind not in _REDUCTIONS:
        raise Unsupported("a scatter whose body is not a single operation")
    return _REDUCTIONS[kind]


def _scattered(call: HloCall, updates: tuple[int, ...]) -> IndexDims:
    numbers, table = call.numbers("scatter_dimension_numbers"), call[0].shape
    dims = index_dims_of(numbers, _SCATTER, table, [1] * len(table), updates)
    sizes = [1] * len(table)
    for dim, source in zip(dims.windows, dims.kept):
        sizes[source] = updates[dim]
    return index_dims_of(numbers, _SCATTER, table, sizes, updates)


def _added_rows(call: HloCall, dims: IndexDims) -> TranslatedTensor:
    """Add rows at indices, skipping those outside of the table."""
    write, rows = call.write, dims.table[0]
    indices = write.rows_flat(dims.row_indices(write, call.full(1)))
    inside = inside_of(write, indices, rows)
    width = math.prod(dims.table[1:])
    new = write.reshape(call.full(2), [shape_of(indices)[0], width])
    mask = write.reshape(inside, [shape_of(indices)[0], 1])
    new = write.emit(_op.where(mask, new, constant(0, call.dtype)))
    table = write.zeros([rows, width], call.dtype)
    near = write.clipped(indices, rows - 1)
    added = write.emit(_op.grad.take_backward(new, table, near, axis=0))
    added = write.reshape(added, call.shape)
    if call[0].scalar != 0:
        added = write.emit(_op.add(call.full(0), added))
    return TranslatedTensor(added, call.shape)


def _masked(call: HloCall, dims: IndexDims, kind: str) -> TranslatedTensor:
    """Write a single element per row by a comparison of positions, which preserves any sharding."""
    write, last = call.write, len(dims.table) - 1
    indices = write.reshape(call.full(1), [*dims.table[:last], 1])
    line = write.counting(dims.table[last], dtype_of(indices))
    sizes = [1] * last + [dims.table[last]]
    hit = write.emit(_op.equal(indices, write.reshape(line, sizes)))
    table, new = call[0], call.full(2)
    if kind == "update":
        return TranslatedTensor(write.emit(_op.where(hit, new, write.full(table))), call.shape)
    masked = write.emit(_op.where(hit, new, constant(0, call.dtype)))
    if table.scalar != 0:
        masked = write.emit(_op.add(write.full(table), masked))
    return TranslatedTensor(masked, call.shape)


def _starts(call: HloCall, first: int) -> Tensors:
    return [TranslatedTensor(v.expr, ()) for v in call.operands[first:]]


def _dynamic_slice(call: HloCall) -> TranslatedTensor:
    sizes, shape = call.integers("slice_sizes"), call[0].shape
    begins = []
    for start, size, full in zip(_starts(call, 1), sizes, shape):
        known = 0 if size == full else start.integer
        begins.append(None if known is None else max(0, min(known, full - size)))
    if None not in begins:
        firsts = [int(b or 0) for b in begins]
        ends = [first + size for first, size in zip(firsts, sizes)]
        return sliced(call, firsts, ends, [1] * len(firsts))
    result, write = call.full(0), call.write
    for axis, (start, size, full) in enumerate(zip(_starts(call, 1), sizes, shape)):
        if size == full:
            continue
        first = write.clipped(start.expr, full - size)
        line = write.reshape(first, [1])
        if size > 1:
            line = write.emit(_op.add(write.counting(size, dtype_of(first)), first))
        result = write.emit(_op.take(result, line, axis=axis, mode="clip"))
    return TranslatedTensor(result, call.shape)


def _dynamic_update_slice(call: HloCall) -> TranslatedTensor:
    x, new, write = call[0], call[1], call.write
    moved = [i for i, (n, m) in enumerate(zip(x.shape, new.shape)) if n != m]
    if not moved:
        return new
    starts = _starts(call, 2)
    if moved == [0] and starts[0].integer is not None and new.shape[0] == 1:
        first = max(0, min(starts[0].integer, x.shape[0] - 1))
        rows = list(x.rows or [None] * x.shape[0])
        rows[first] = new
        return TranslatedTensor(x.expr, x.shape, tuple(rows))
    if len(moved) == 1 and starts[moved[0]].integer is not None:
        return write.value(_replaced(call, moved[0], int(starts[moved[0]].integer or 0)))
    result, inside = write.full(new), None
    for axis in moved:
        size, part = x.shape[axis], new.shape[axis]
        first = write.clipped(starts[axis].expr, size - part)
        position = write.emit(_op.subtract(write.counting(size, dtype_of(first)), first))
        result = write.emit(_op.take(result, position, axis=axis, mode="clip"))
        here = inside_of(write, position, part)
        here = write.reshape(here, [size if i == axis else 1 for i in range(len(x.shape))])
        inside = here if inside is None else write.emit(_op.logical_and(inside, here))
    return TranslatedTensor(write.emit(_op.where(inside, result, write.full(x))), x.shape)


def _replaced(call: HloCall, axis: int, start: int) -> Expr:
    """Replace a part of a tensor along a single dim."""
    write, x, new = call.write, call.full(0), call.full(1)
    shape = call[0].shape
    first = max(0, min(start, shape[axis] - call[1].shape[axis]))
    last = first + call[1].shape[axis]
    flat, parts = [0] * len(shape), []
    if first:
        parts.append(write.slice(x, flat, [first if i == axis else n for i, n in enumerate(shape)]))
    parts.append(new)
    if last < shape[axis]:
        parts.append(write.slice(x, [last if i == axis else 0 for i in range(len(shape))], shape))
    return write.emit(_op.concat(parts, axis))


CONVERTERS: dict[str, Converter] = {
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
}
