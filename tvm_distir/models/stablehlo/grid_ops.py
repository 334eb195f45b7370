# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate operations of MLIR's dialect ``shard``: placements and collectives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from tvm_distir.core.ir import mesh_shape
from tvm_distir.core.ir.operators import ops
from tvm_distir.models.mlir.tree import Operation

from .emitter import Emitter
from .grids import Grids, GridStep, Placed
from .shardings import split_axes
from .translated_values import TranslatedTensor, UnsupportedOperation, constant, typed

INTEGERS = {"index": "int64", "i64": "int64", "i32": "int32"}


def shard_results(
    grids: Grids, operation: Operation, operands: list[Any], write: Emitter
) -> list[Any]:
    """Return the results of an operation: values, and shardings.

    Raises
    ------
    UnsupportedOperation
        What no op of ours says.
    """
    results = CONVERTERS[operation.name](GridStep(grids, operation, operands, write))
    return results if isinstance(results, list) else [results]


def _sharding(step: GridStep) -> Placed:
    mesh, device_mesh = step.grids.grid(step.operation)
    if any(step.numbers("static_halo_sizes")):
        raise UnsupportedOperation("halos in shardings")
    split = split_axes(step.operation.attributes.get("split_axes"))
    return Placed(mesh, device_mesh, split, step.numbers("static_sharded_dims_offsets"))


def _shard(step: GridStep) -> TranslatedTensor:
    value, placed = step.operands
    if not isinstance(placed, Placed):
        raise UnsupportedOperation("a sharding that is not a result of shard.sharding")
    return step.grids.annotated(value, placed, step.write)


def _all_reduce(step: GridStep) -> TranslatedTensor:
    mesh, axes = step.mesh()
    if not axes:
        return step.write.value(step.operand())
    return step.emit(ops.all_reduce(step.operand(), mesh, sorted(axes), step.kind))


def _along(step: GridStep, make: Callable[[Any, Any, Any], Any]) -> TranslatedTensor:
    """Apply a collective along axes, if there are any."""
    mesh, axes = step.ordered()
    if not axes:
        return step.write.value(step.operand())
    return step.emit(make(step.operand(), mesh, axes[0] if len(axes) == 1 else axes))


def _all_gather(step: GridStep) -> TranslatedTensor:
    dim = step.number("gather_axis")
    return _along(step, lambda x, mesh, axes: ops.all_gather(x, mesh, axes, dim))


def _all_slice(step: GridStep) -> TranslatedTensor:
    dim = step.number("slice_axis")
    return _along(step, lambda x, mesh, axes: ops.local_slice(x, mesh, axes, dim))


def _all_to_all(step: GridStep) -> TranslatedTensor:
    split, concat = step.number("split_axis"), step.number("concat_axis")
    return _along(step, lambda x, mesh, axes: ops.all_to_all(x, mesh, axes, concat, split))


def _reduce_scatter(step: GridStep) -> TranslatedTensor:
    dim, kind = step.number("scatter_axis"), step.kind
    return _along(step, lambda x, mesh, axes: ops.reduce_scatter(x, mesh, axes, dim, kind))


def _shift(step: GridStep) -> TranslatedTensor:
    mesh, _ = step.mesh()
    axis, offset = step.number("shift_axis"), step.number("offset")
    if not 0 <= axis < len(mesh_shape(mesh)):
        raise UnsupportedOperation(f"the axis {axis} of a grid of {len(mesh_shape(mesh))}")
    ring = bool(step.operation.attributes.get("rotate", False))
    return step.emit(ops.collective_permute(step.operand(), mesh, axis, offset, wrap=ring))


def _axes_of(step: GridStep) -> tuple[Any, list[int], list[int]]:
    """Return the grid, its sizes, and the given axes or all axes."""
    mesh, _ = step.mesh()
    sizes = [int(n) for n in mesh_shape(mesh)]
    axes = step.numbers("axes") or list(range(len(sizes)))
    if not all(0 <= axis < len(sizes) for axis in axes):
        raise UnsupportedOperation(f"axes {axes} of a grid of {len(sizes)}")
    return mesh, sizes, axes


def _places(step: GridStep) -> list[TranslatedTensor]:
    mesh, _, axes = _axes_of(step)
    return [step.write.value(step.place(mesh, axis)) for axis in axes]


def _number(step: GridStep) -> TranslatedTensor:
    mesh, sizes, axes = _axes_of(step)
    index = step.place(mesh, 0)
    for axis in axes[1:]:
        scaled = step.write.emit(relax.op.multiply(index, constant(sizes[axis], "int64")))
        index = step.write.emit(relax.op.add(scaled, step.place(mesh, axis)))
    return step.write.value(index)


def _integer(step: GridStep) -> TranslatedTensor:
    """Cast an index to another integer type."""
    kind = str(step.operation.result_types[0])
    if kind not in INTEGERS:
        raise UnsupportedOperation(f"an integer of the type {kind}")
    return step.write.value(step.write.cast(step.write.whole(step.operands[0]), INTEGERS[kind]))


def _tensor(step: GridStep) -> TranslatedTensor:
    shape, dtype = typed(step.operation.result_types[0])
    if len(step.operands) != 1 or math.prod(shape) != 1:
        raise UnsupportedOperation("a tensor of several numbers")
    return step.write.value(
        step.write.reshape(step.write.cast(step.operands[0].expr, dtype), shape)
    )


CONVERTERS: dict[str, Callable[[GridStep], Any]] = {
    "shard.sharding": _sharding,
    "shard.shard": _shard,
    "shard.all_reduce": _all_reduce,
    "shard.all_gather": _all_gather,
    "shard.all_slice": _all_slice,
    "shard.all_to_all": _all_to_all,
    "shard.reduce_scatter": _reduce_scatter,
    "shard.shift": _shift,
    "shard.process_multi_index": _places,
    "shard.process_linear_index": _number,
    "arith.index_cast": _integer,
    "tensor.from_elements": _tensor,
}
"""The meanings of operations of the dialect, and of those around it."""
