# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent arrays as a single part per rank, in memory or in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tvm_distir.support import EngineError

from .device_objects import DeviceObjects
from .io_layout import Bounds, Entries
from .joining import check_local, check_results
from .tensors import Array


@runtime_checkable
class Stored(Protocol):
    """An array outside of memory, of which boxes can be read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the full shape."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Return the element type."""

    def read(self, bounds: Bounds) -> Array:
        """Read a box only."""


@dataclass(frozen=True)
class ShardedArray:
    """A tensor as the local arrays of ranks.

    Attributes
    ----------
    parts : mapping of rank to array
        Local arrays as the entry function takes them: ``ceil(n / k)`` elements per dim cut into
        k shards, zeros where a shard reaches over the end. A part may be a :class:`Stored`.
    shape : tuple of int, optional
        Shape of the whole tensor.
    boxes : mapping of rank to (start, stop) per dim
        The box of the full tensor that each part holds; empty where it is not known. A run refuses
        a part that holds another box than the box it needs.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> inputs = [np.ones((4, 8), "float32"), np.ones((8, 8), "float32"), np.zeros(8, "float32")]
    >>> (output,) = td.run(dist, inputs, engine="virtual", outputs="sharded")
    >>> sorted(output.parts), output.parts[0].shape, output.shape
    ([0, 1], (4, 8), (4, 8))
    """

    parts: Mapping[int, Any]
    shape: tuple[int, ...] | None = None
    boxes: Mapping[int, Bounds] = field(default_factory=dict)

    def whole(self) -> Array:
        """Join the parts.

        Raises
        ------
        EngineError
            DIST0602 when it is not known which box a part holds, or when a box is missing.
        """
        if self.shape is None or set(self.boxes) != set(self.parts) or not self.parts:
            raise _cannot_join("the index range of each shard is unknown")
        values = {rank: read_part(part) for rank, part in self.parts.items()}
        out = np.zeros(self.shape, next(iter(values.values())).dtype)
        seen = np.zeros(self.shape, np.bool_)
        for rank, part in values.items():
            box = tuple(slice(a, b) for a, b in self.boxes[rank])
            out[box] = part[tuple(slice(0, b - a) for a, b in self.boxes[rank])]
            seen[box] = True
        if not seen.all():
            raise _cannot_join(f"the ranks {sorted(self.parts)} do not hold the full tensor")
        return out


def _cannot_join(problem: str) -> EngineError:
    return EngineError(
        "DIST0602", problem, location="sharded array", remedy='Run with outputs="whole".'
    )


def read_part(part: object) -> Array:
    """Return a part as an array, read from its file if it is stored."""
    if isinstance(part, Stored):
        return part.read(tuple((0, n) for n in part.shape))
    return np.asarray(part)


def sharded_outputs(entries: Entries, results: Mapping[int, Sequence[Array]]) -> list[Any]:
    """Return the outputs as the ranks hold them, in the order of the original function's results.

    Parameters
    ----------
    entries : sequence of EntryFunction
    results : mapping of rank to its local results
        The results of all ranks, or of those whose results are in this process.

    Raises
    ------
    EngineError
        DIST0603 when an output is missing or has a wrong shape or type.
    """
    check_results(entries, results)
    parts: dict[int, dict[int, Array]] = {}
    boxes: dict[int, dict[int, Bounds]] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    objects: dict[int, dict[int, Any]] = {}
    for entry in entries:
        for k, port in enumerate(entry.outputs):
            if port.is_object:
                shapes[port.index] = ()
                by_rank = objects.setdefault(port.index, {})
                by_rank.update((rank, results[rank][k]) for rank in entry.ranks if rank in results)
                continue
            shapes[port.index] = port.shape
            for rank in entry.ranks:
                if rank not in results:
                    continue
                check_local(results[rank][k], port, entry, rank, entry.output_location(port))
                parts.setdefault(port.index, {})[rank] = results[rank][k]
                boxes.setdefault(port.index, {})[rank] = entry.bounds(port, rank)
    return [
        DeviceObjects(objects[i])
        if i in objects
        else ShardedArray(parts.get(i, {}), shapes[i], boxes.get(i, {}))
        for i in sorted(shapes)
    ]
