# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate StableHLO collectives in local programs to the mesh axes of their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tvm import relax
from tvm.relax import Expr
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import axis_groups, groups_by_axes, mesh_devices, mesh_shape
from tvm_distir.core.ir.operators import ops
from tvm_distir.models.common.hlo_names import REDUCTIONS
from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.mlir.tree import Dense

from .operation_call import HloCall
from .reductions import applied
from .translated_values import Tensors, constant

_KINDS = {theirs: name for name, theirs in REDUCTIONS.items()}


def _rows(call: HloCall, name: str) -> list[list[int]]:
    """Return an attribute that is a table of device numbers, padded by -1."""
    attribute = call.attribute(name)
    if not isinstance(attribute, Dense) or len(attribute.type.shape) != 2:
        raise Unsupported(f"no {name}")
    table = np.broadcast_to(attribute.values, tuple(n or 0 for n in attribute.type.shape))
    return [[int(n) for n in row if n >= 0] for row in table]


def _axes(call: HloCall, mesh: DeviceMesh, ordered: bool) -> list[int]:
    """Return the fewest axes along which groups are formed."""
    groups = _normal(_rows(call, "replica_groups"), ordered)
    if all(len(group) == 1 for group in groups):
        return []
    for axes, along in groups_by_axes(mesh):
        if _normal(along, ordered) == groups:
            return list(axes)
    raise Unsupported(f"groups {groups[:4]} that are not along axes of the mesh")


def _normal(groups: Sequence[Sequence[int]], ordered: bool) -> list[list[int]]:
    return sorted([int(n) for n in (group if ordered else sorted(group))] for group in groups)


def _reduction(call: HloCall) -> str:
    kind = applied(call.region())
    if kind not in _KINDS:
        raise Unsupported(f'a collective that reduces by "{kind}"')
    return _KINDS[kind]


def _along(
    call: HloCall, mesh: DeviceMesh, ordered: bool, make: Callable[[Expr, list[int]], Expr]
) -> Tensors:
    """Apply a collective to each operand, unless groups have a single device."""
    axes = _axes(call, mesh, ordered)
    if not axes:
        return call.operands
    return [
        call.write.value(call.write.emit(make(call.full(i), axes)))
        for i in range(len(call.operands))
    ]


def _all_reduce(call: HloCall, mesh: DeviceMesh) -> Tensors:
    kind = _reduction(call)
    return _along(call, mesh, False, lambda x, axes: ops.all_reduce(x, mesh, axes, kind))


def _all_gather(call: HloCall, mesh: DeviceMesh) -> Tensors:
    dim = int(call.attribute("all_gather_dim", -1))
    return _along(call, mesh, True, lambda x, axes: ops.all_gather(x, mesh, axes, dim))


def _reduce_scatter(call: HloCall, mesh: DeviceMesh) -> Tensors:
    dim, kind = int(call.attribute("scatter_dimension", -1)), _reduction(call)
    return _along(call, mesh, True, lambda x, axes: ops.reduce_scatter(x, mesh, axes, dim, kind))


def _all_to_all(call: HloCall, mesh: DeviceMesh) -> Tensors:
    split, concat = (int(call.attribute(f"{side}_dimension", -1)) for side in ("split", "concat"))
    if split == concat:
        raise Unsupported("an exchange between parts of a single dim")
    return _along(call, mesh, True, lambda x, axes: ops.all_to_all(x, mesh, axes, concat, split))


def _shifts(mesh: DeviceMesh) -> Iterator[tuple[int, int, bool, list[list[int]]]]:
    """Return axes, shifts and whether groups are rings, with the pairs of sending devices."""
    for axis, size in enumerate(mesh_shape(mesh)):
        groups = axis_groups(mesh, [axis])
        for shift in sorted(range(1 - size, size), key=lambda n: (abs(n), n < 0)):
            for ring in (True, False) if shift else ():
                pairs = [
                    [int(group[i]), int(group[(i + shift) % size])]
                    for group in groups
                    for i in range(size)
                    if ring or 0 <= i + shift < size
                ]
                yield axis, shift, ring, sorted(pairs)


def _permute(call: HloCall, mesh: DeviceMesh) -> Tensors:
    requested_pairs = sorted(_rows(call, "source_target_pairs"))
    for axis, shift, ring, pairs in _shifts(mesh):
        if pairs == requested_pairs:
            result = ops.collective_permute(call.full(0), mesh, axis, shift, wrap=ring)
            return [call.write.value(call.write.emit(result))]
    raise Unsupported(f"pairs {requested_pairs[:4]} that are not a shift along an axis")


def _number(call: HloCall, mesh: DeviceMesh) -> Tensors:
    """Return the number of the running device."""
    devices = [int(device) for device in mesh_devices(mesh).ravel()]
    if devices != list(range(len(devices))):
        raise Unsupported("device ids that are not those of the mesh in row-major order")
    write = call.write
    index = write.emit(ops.axis_index(mesh, 0))
    for axis, size in enumerate(mesh_shape(mesh)[1:], 1):
        scaled = write.emit(relax.op.multiply(index, constant(size, "int64")))
        index = write.emit(relax.op.add(scaled, write.emit(ops.axis_index(mesh, axis))))
    return [write.value(write.cast(index, call.dtype))]


MOVES: dict[str, Callable[[HloCall, DeviceMesh], Tensors]] = {
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_gather": _all_gather,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_permute": _permute,
    "stablehlo.partition_id": _number,
    "stablehlo.replica_id": _number,
}
"""The writer of each collective, given the mesh, by its name."""
