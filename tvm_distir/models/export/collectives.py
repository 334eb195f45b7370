# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write collectives between devices at level 5, and placements before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_distir.core.ir import (
    Labels,
    device_coordinates,
    labels_of,
    mesh_devices,
    mesh_shape,
    parse_placement,
    shard_slices,
)
from tvm_distir.core.ir.operators import call_axes
from tvm_distir.models.common.hlo_names import REDUCTIONS

from .body_writer import Ssa
from .shapes import same
from .step import ExportStep, Write, refuse
from .text import table


def _groups(step: ExportStep) -> list[list[int]]:
    return step.devices.groups(step.attrs["device_mesh"], call_axes(step.call))


def _channel(step: ExportStep, by_ids: bool = True) -> str:
    """Return whether device numbers are partitions of a program, or replicas of it."""
    if step.devices.partitioning != "manual":
        return ""
    ids = ", use_global_device_ids" if by_ids else ""
    return f", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>{ids}"


def _reduced(step: ExportStep, name: str, notes: str = "") -> Ssa:
    """Write a reduction over the devices of each group."""
    notes += f"replica_groups = {table(_groups(step))}{_channel(step)}"
    region = step.body.region(REDUCTIONS[str(step.attrs["op"])], step.dtype)
    return step.body.op(name, [step[0]], step.shape, step.dtype, notes, region)


def _reduce_scatter(step: ExportStep) -> Ssa:
    notes = f"scatter_dimension = {int(step.attrs['dim'])} : i64, "
    return _reduced(step, "reduce_scatter", notes)


def _gathered(step: ExportStep, value: Ssa, dim: int) -> Ssa:
    """Concatenate the values of each group along a dim."""
    groups = _groups(step)
    shape = [n * len(groups[0]) if i == dim else n for i, n in enumerate(value.shape)]
    notes = f"all_gather_dim = {dim} : i64, replica_groups = {table(groups)}{_channel(step)}"
    return step.body.op("all_gather", [value], shape, value.dtype, notes)


def _all_to_all(step: ExportStep) -> Ssa:
    groups = _groups(step)
    notes = f"split_dimension = {int(step.attrs['split_dim'])} : i64"
    notes += f", concat_dimension = {int(step.attrs['gather_dim'])} : i64"
    notes += f", split_count = {len(groups[0])} : i64"
    notes += f", replica_groups = {table(groups)}{_channel(step, by_ids=False)}"
    return step.body.op("all_to_all", [step[0]], step.shape, step.dtype, notes)


def _permute(step: ExportStep) -> Ssa:
    shift, ring = int(step.attrs["shift"]), "wrap" in step.attrs and bool(step.attrs["wrap"])
    pairs = []
    for group in _groups(step):
        for i, device in enumerate(group):
            to = (i + shift) % len(group) if ring else i + shift
            if 0 <= to < len(group):
                pairs.append([device, group[to]])
    x = step[0]
    if not pairs:
        return step.body.filled(0, x)
    notes = f"source_target_pairs = {table(pairs)}{_channel(step, by_ids=False)}"
    return step.body.op("collective_permute", [x], x.shape, x.dtype, notes)


def _at_position(step: ExportStep, rows: Sequence[int], dtype: str) -> Ssa:
    """Return the number at this device's position in a table."""
    body = step.body
    name = "partition_id" if step.devices.partitioning == "manual" else "replica_id"
    device = body.cast(body.op(name, [], (), "uint32"), "int64")
    table = body.constant(np.asarray(rows, dtype), dtype)
    return body.reshape(body.dynamic_slice(table, [device], [1]), ())


def _coordinates(step: ExportStep) -> list[int]:
    """Return the position of each device in its group, by the number of the device."""
    position_of = {d: i for group in _groups(step) for i, d in enumerate(group)}
    return [position_of.get(device, 0) for device in range(1 + max(position_of))]


def _coordinate(step: ExportStep) -> Ssa:
    return _at_position(step, _coordinates(step), "int64")


def _local_slice(step: ExportStep) -> Ssa:
    dim, body, shape = int(step.attrs["dim"]), step.body, step.shape
    first = body.binary("multiply", _coordinate(step), shape[dim])
    zero = body.constant(0, "int64")
    starts = [first if i == dim else zero for i in range(len(shape))]
    return body.dynamic_slice(step[0], starts, shape)


def _partial(step: ExportStep) -> Ssa:
    """Turn a full value into partial sums: it stays on the first device of each group."""
    x, kind = step[0], str(step.attrs["op"])
    if kind != "sum":
        raise refuse(step, f"by {kind}")
    rows = [position == 0 for position in _coordinates(step)]
    return step.body.select(_at_position(step, rows, "bool"), x, 0)


def _exchange(step: ExportStep) -> Ssa:
    """Write an exchange as a gather and a slice, with more traffic than R.dist.exchange."""
    attrs, body, x = step.attrs, step.body, step[0]
    mesh, shape = attrs["device_mesh"], [int(n) for n in attrs["shape"]]
    source, target = (parse_placement(str(attrs[k])) for k in ("placement", "peer_placement"))
    groups, rank, out = _groups(step), len(shape), step.shape
    coordinates = {
        step.devices.number(int(d)): device_coordinates(mesh, int(d))
        for d in mesh_devices(mesh).ravel()
    }

    def box(labels: Labels, device: int) -> list[tuple[int, int]]:
        slices = shard_slices(shape, labels, mesh_shape(mesh), coordinates[device])
        return [(int(low), int(high)) for low, high in slices]

    parts = _gathered(step, body.reshape(x, (1, *x.shape)), 0)
    padded_shape = [n + m for n, m in zip(shape, out)]
    full = body.broadcast(body.constant(0, x.dtype), padded_shape)
    for position, device in enumerate(groups[0]):  # all groups hold the same boxes
        bounds = box(source, device)
        sizes = [high - low for low, high in bounds]
        if min(sizes, default=1) <= 0:
            continue
        piece = body.slice(parts, [position] + [0] * rank, [position + 1, *sizes])
        starts = [body.constant(low, "int64") for low, _ in bounds]
        piece = body.reshape(piece, sizes)
        full = body.op("dynamic_update_slice", [full, piece, *starts], full.shape, x.dtype)
    boxes = [box(target, device) for device in sorted(coordinates)]
    starts = [_at_position(step, [b[i][0] for b in boxes], "int64") for i in range(rank)]
    result = body.dynamic_slice(full, starts, out)
    for i in range(rank):
        extents = [b[i][1] - b[i][0] for b in boxes]
        if any(size != out[i] for size in extents):
            line = body.iota(out, i, "int64")
            inside = body.compare("LT", line, _at_position(step, extents, "int64"))
            result = body.select(inside, result, 0)
    return result


def _placed(step: ExportStep) -> Ssa:
    """Annotate a value with the placement of the op, or of its result."""
    x, attrs, ty = step[0], step.attrs, step.call.ty
    if hasattr(ty, "placement"):
        mesh, labels = ty.device_mesh, labels_of(ty.placement)
    else:
        mesh, labels = attrs.device_mesh, labels_of(attrs.placement)
    text = step.devices.sharding(mesh, labels, len(x.shape), step.call)
    notes = f"sharding = #sdy.sharding{text}"
    return step.body.op("sdy.sharding_constraint", [x], x.shape, x.dtype, notes)


def _at_levels(local: Write, before: Write) -> Write:
    """Write a collective at level 5, and a placement before it."""
    return lambda step: local(step) if step.devices.is_local else before(step)


_MOVES: dict[str, Write] = {
    "all_reduce": lambda step: _reduced(step, "all_reduce"),
    "all_gather": lambda step: _gathered(step, step[0], int(step.attrs["dim"])),
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "local_slice": _local_slice,
    "collective_permute": _permute,
    "exchange": _exchange,
}

WRITERS: dict[str, Write] = {
    **{f"dist.{name}": _at_levels(write, _placed) for name, write in _MOVES.items()},
    "dist.partial": _at_levels(_partial, same),
    "dist.view": same,
    "dist.axis_index": _coordinate,
    "dist.collective_done": same,
    "dist.annotate_sharding": _placed,
    "dist.redistribute": _placed,
}
