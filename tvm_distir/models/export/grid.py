# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write grids, shardings and process indices of MLIR's dialect ``shard``, and ports.

A port says of which array an argument or a result of a local program is a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_distir.core.ir import labels_of, mesh_devices, mesh_shape, shard_counts, shard_offsets
from tvm_distir.core.ir.operators import call_axes

from .body_writer import Body, Ssa
from .step import DeviceInterface, ExportStep
from .text import Unwritable, integers, string, symbol

PREFIX = "tvm_distir"
"""The prefix of attributes that express what the dialect has no words for; others may drop them."""
AXES = f"{PREFIX}.axes"
"""The attribute of a grid with the names of its axes."""
NUM_INPUT = f"{PREFIX}.num_input"
"""The attribute of a function with the number of leading data arguments."""
PORT = f"{PREFIX}.port"
"""The attribute of an argument or a result of a local program."""


def axes_text(axes: Sequence[int]) -> str:
    """Return the axes of a grid as an attribute.

    Examples
    --------
    >>> axes_text([0, 1]), axes_text([])
    ('array<i16: 0, 1>', 'array<i16>')
    """
    return integers(axes).replace("i64", "i16")


def grid_text(name: str, mesh: Any, axes: Sequence[str]) -> str:
    """Declare a grid of processes in row-major order."""
    ids = [int(device) for device in mesh_devices(mesh).ravel()]
    if ids != list(range(len(ids))):
        raise Unwritable(
            f"devices {ids[:8]}: processes of a grid of the dialect shard are 0, 1, ..."
        )
    fields = f"shape = {integers(mesh_shape(mesh))}, sym_name = {string(name)}"
    names = ", ".join(map(string, axes))
    return f'"shard.grid"() <{{{fields}}}> {{{AXES} = [{names}]}} : () -> ()'


def split_axes(labels: Sequence[int], rank: int) -> str:
    """Return the axes that shard each of at least a single dim."""
    dims = [[a for a, label in enumerate(labels) if label == dim] for dim in range(max(rank, 1))]
    return f"#shard<axisarray{dims}>"


def _offsets(shape: Sequence[int], labels: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the offsets of the shards, or nothing if all have the same size."""
    counts = shard_counts(labels, sizes, len(shape))
    return shard_offsets(shape, labels, sizes) if any(map(int.__mod__, shape, counts)) else []


def annotated(
    body: Body, devices: DeviceInterface, value: Ssa, mesh: Any, labels: Sequence[int]
) -> Ssa:
    """Annotate a value with its placement, or its readers if it is annotated already."""
    notes = f"grid = {symbol(devices.mesh_name(mesh))}, operandSegmentSizes = array<i32: 0, 0>"
    notes += f", split_axes = {split_axes(labels, len(value.shape))}"
    notes += ", static_halo_sizes = array<i64>, static_sharded_dims_offsets = "
    notes += integers(_offsets(value.shape, labels, mesh_shape(mesh)))
    sharding = body.special("shard.sharding", [], "!shard.sharding", notes)
    cached = body.placed.get(value.name)
    users = "annotate_for_users" if cached else ""
    sharded = body.op("shard.shard", [cached or value, sharding], value.shape, value.dtype, users)
    body.placed[sharded.name] = cached or sharded
    body.placed.setdefault(value.name, sharded)
    return sharded


def placed(step: ExportStep) -> Ssa:
    """Annotate a value with the placement of the op, or of its result."""
    x, attrs, ty = step[0], step.attrs, step.call.ty
    placed_type: Any = step.call.args[0].ty
    if hasattr(placed_type, "placement") and x.name not in step.body.placed:
        labels = labels_of(placed_type.placement)
        x = annotated(step.body, step.devices, x, placed_type.device_mesh, labels)
    source = ty if hasattr(ty, "placement") else attrs
    labels = labels_of(source.placement)
    return annotated(step.body, step.devices, x, source.device_mesh, labels)


def grid_of(step: ExportStep) -> str:
    """Return the attribute that names the grid of a call."""
    return f"grid = {symbol(step.devices.mesh_name(step.attrs['device_mesh']))}"


def linear_index(step: ExportStep) -> Ssa:
    """Write the linear index of the process on the grid of a call."""
    return _tensor(step.body, "shard.process_linear_index", grid_of(step))


def coordinate(step: ExportStep) -> Ssa:
    """Write the index along the axes of a call, major to minor."""
    body, index = step.body, None
    sizes = mesh_shape(step.attrs["device_mesh"])
    for axis in sorted(call_axes(step.call)):
        notes = f"axes = {axes_text([axis])}, {grid_of(step)}"
        place = _tensor(body, "shard.process_multi_index", notes)
        if index is not None:
            place = body.binary("add", body.binary("multiply", index, sizes[axis]), place)
        index = place
    if index is None:
        raise Unwritable("a position along no axis")
    return index


def _tensor(body: Body, name: str, notes: str) -> Ssa:
    """Convert a process index to a StableHLO tensor."""
    index = body.special(name, [], "index", notes)
    number = body.special("arith.index_cast", [index], "i64", "")
    return body.op("tensor.from_elements", [number], (), "int64")


@dataclass(frozen=True)
class PortNotes:
    """Attributes of the arguments and results of an entry function, as text."""

    inputs: list[str]
    outputs: list[str]


def port_notes(io: Any, grid_of: Callable[[Any], str]) -> PortNotes:
    """Return the attributes that represent ``dist.io``.

    Parameters
    ----------
    io : mapping
        The attribute.
    grid_of : callable
        Name of the mesh that an input or output is placed on.
    """
    sides = ([_note(port, grid_of(port)) for port in io[side]] for side in ("inputs", "outputs"))
    return PortNotes(*sides)


def _note(port: Any, grid: str) -> str:
    note = f"grid = {symbol(grid)}, index = {int(port['index'])} : i64"
    note += f", placement = {string(str(port['placement']))}"
    if "role" in port:
        note += f", role = {string(str(port['role']))}"
    if "index_range" in port:
        note += f", index_range = {integers(port['index_range'])}"
    return f"{PORT} = {{{note}, shape = {integers(port['shape'])}}}"
