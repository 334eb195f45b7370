# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cut the inputs of a run into the parts of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvm_distir.core.ir import Segments

from .device_objects import DeviceObjects
from .input_faults import bad_input, index_fault, input_location
from .io_layout import Bounds, EntryFunction, Port, np_dtype
from .sharded import ShardedArray, Stored, read_part
from .tensors import Array


class LocalInputs:
    """The local inputs of each rank, sharded from the user's inputs on demand.

    Replicas of a shard share an array: nothing is cut, read or sent twice.

    Parameters
    ----------
    values : mapping of int to array, Stored or ShardedArray
        The values by position in the original function.
    """

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = values
        self._slices: dict[tuple[int, Bounds], Array] = {}

    def source(self, port: Port) -> Any:
        """Return the user's value of an input."""
        return self._values[port.index]

    def of(self, entry: EntryFunction, rank: int) -> list[Array]:
        """Return the local arrays of a rank, in ``dist.io`` order."""
        return [self.part(entry, port, rank) for port in entry.inputs]

    def part(self, entry: EntryFunction, port: Port, rank: int) -> Any:
        """Return the local (zero-padded) array of an input on a rank, or the rank's object."""
        value = self._values[port.index]
        if isinstance(value, DeviceObjects):
            return value.of(rank, input_location(port))
        if isinstance(value, ShardedArray):
            return _own_part(value, entry, port, rank)
        bounds = entry.bounds(port, rank)
        key = (port.index, bounds)
        if key not in self._slices:
            self._slices[key] = _cut(value, bounds, entry.local_shape(port), port.segments)
        return self._slices[key]


def _cut(
    value: Stored | Array, bounds: Bounds, size: tuple[int, ...], segments: Segments | None = None
) -> Array:
    if segments is None:
        part = _box_of(value, bounds)
    else:
        dim = segments.dim
        ranges = segments.sources(*bounds[dim])
        boxes = [(*bounds[:dim], piece, *bounds[dim + 1 :]) for piece in ranges]
        part = np.concatenate([_box_of(value, box) for box in boxes], axis=dim)
    if part.shape != size:
        padded = np.zeros(size, part.dtype)
        padded[tuple(slice(0, n) for n in part.shape)] = part
        part = padded
    return np.ascontiguousarray(part).reshape(size)


def _box_of(value: Stored | Array, bounds: Bounds) -> Array:
    """Return a box of an array, in memory or in a file."""
    if isinstance(value, Stored):
        return value.read(bounds)
    box: Array = value[tuple(slice(a, b) for a, b in bounds)]
    return box


def _own_part(value: ShardedArray, entry: EntryFunction, port: Port, rank: int) -> Array:
    if rank not in value.parts:
        raise bad_input(
            f"rank {rank} has no shard, ranks {sorted(value.parts)} have",
            f"Give a shard for each of the ranks {list(entry.ranks)}.",
            port,
        )
    bounds = entry.bounds(port, rank)
    if value.boxes and value.boxes.get(rank) != bounds:
        raise bad_input(
            f"rank {rank} holds {_box_text(value.boxes.get(rank))} of the tensor, it requires "
            f"{_box_text(bounds)}",
            "Give the full array, or place it equally in both modules.",
            port,
        )
    part, size, dtype = read_part(value.parts[rank]), entry.local_shape(port), np_dtype(port.dtype)
    fault = index_fault(part, port.index_range, input_location(port)) if port.index_range else None
    if fault is not None:
        raise fault
    if part.shape != size or part.dtype != dtype:
        raise bad_input(
            f"rank {rank} holds {part.dtype}{list(part.shape)}, it needs {dtype}{list(size)}",
            "Shard it as dist.io says, padded to equal shards.",
            port,
        )
    return np.ascontiguousarray(part).reshape(size)


def _box_text(box: Bounds | None) -> str:
    return "an unknown box" if box is None else f"[{', '.join(f'{a}:{b}' for a, b in box)}]"
