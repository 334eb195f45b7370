# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write collectives and placements of MLIR's dialect ``shard``."""

from __future__ import annotations

from tvm_distir.core.ir import axis_groups, mesh_shape
from tvm_distir.core.ir.operators import call_axes

from . import collectives
from .body_writer import Ssa
from .grid import axes_text, coordinate, grid_of, placed
from .step import ExportStep, Write, refuse

_KINDS = {"sum": "sum", "max": "max", "min": "min", "prod": "product"}


def _notes(step: ExportStep, **more: object) -> str:
    """Return the attributes of a collective over the axes of a call, with ``index`` numbers."""
    axes = axes_text(sorted(call_axes(step.call)))
    attributes = [grid_of(step), f"grid_axes = {axes}"]
    if "op" in step.attrs:
        attributes.append(f"reduction = #shard<partial {_KINDS[str(step.attrs['op'])]}>")
    attributes += [f"{key} = {value} : index" for key, value in more.items()]
    return ", ".join(attributes)


def _all_reduce(step: ExportStep) -> Ssa:
    return step.body.op("shard.all_reduce", [step[0]], step.shape, step.dtype, _notes(step))


def _all_gather(step: ExportStep) -> Ssa:
    notes = _notes(step, gather_axis=int(step.attrs["dim"]))
    return step.body.op("shard.all_gather", [step[0]], step.shape, step.dtype, notes)


def _reduce_scatter(step: ExportStep) -> Ssa:
    notes = _notes(step, scatter_axis=int(step.attrs["dim"]))
    return step.body.op("shard.reduce_scatter", [step[0]], step.shape, step.dtype, notes)


def _all_to_all(step: ExportStep) -> Ssa:
    notes = _notes(
        step,
        split_axis=int(step.attrs["split_dim"]),
        concat_axis=int(step.attrs["gather_dim"]),
    )
    return step.body.op("shard.all_to_all", [step[0]], step.shape, step.dtype, notes)


def _all_slice(step: ExportStep) -> Ssa:
    notes = _notes(step, slice_axis=int(step.attrs["dim"]))
    return step.body.op("shard.all_slice", [step[0]], step.shape, step.dtype, notes)


def _shift(step: ExportStep) -> Ssa:
    """Shift along an axis, with zeros for results that no process sends without a ring."""
    shift, ring = int(step.attrs["shift"]), "wrap" in step.attrs and bool(step.attrs["wrap"])
    axes, body, x = call_axes(step.call), step.body, step[0]
    if len(axes) != 1:
        raise refuse(step, "along several axes")
    size = mesh_shape(step.attrs["device_mesh"])[axes[0]]
    if not ring and abs(shift) >= size:
        return body.filled(0, x)
    notes = _notes(step, shift_axis=axes[0]) + f", offset = {shift} : i64"
    notes += ", rotate" if ring else ""
    shifted = body.op("shard.shift", [x], x.shape, x.dtype, notes)
    if ring:
        return shifted
    place = coordinate(step)
    sent = (
        body.compare("GE", place, shift) if shift > 0 else body.compare("LT", place, size + shift)
    )
    return body.select(sent, shifted, 0)


def _gather_group(step: ExportStep, value: Ssa) -> Ssa:
    """Concatenate the values of a group along the first dim."""
    count = len(axis_groups(step.attrs["device_mesh"], call_axes(step.call))[0])
    shape = (count * value.shape[0], *value.shape[1:])
    return step.body.op(
        "shard.all_gather", [value], shape, value.dtype, _notes(step, gather_axis=0)
    )


_MOVES: dict[str, Write] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "local_slice": _all_slice,
    "collective_permute": _shift,
    "exchange": lambda step: collectives.exchange(step, _gather_group),
}

WRITERS: dict[str, Write] = {
    **collectives.WRITERS,
    **{f"dist.{name}": collectives.at_levels(write, placed) for name, write in _MOVES.items()},
    "dist.axis_index": coordinate,
    "dist.annotate_sharding": placed,
    "dist.redistribute": placed,
}
