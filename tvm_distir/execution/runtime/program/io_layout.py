# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe which part of every input and output each rank holds.

Nothing here needs IR: TVM's runtime-only library is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tvm_distir.core.ir import (
    Labels,
    Segments,
    check_placement,
    local_shape,
    parse_placement,
    placement_text,
    shard_slices,
)
from tvm_distir.support import EngineError

OBJECT = "object"
"""Dtype of an input or output that is an object of each device, without shape and placement."""

Bounds = tuple[tuple[int, int], ...]
"""A box of a tensor: start and stop per dim."""


@dataclass(frozen=True)
class Port:
    """An input or output of an entry function.

    Attributes
    ----------
    index : int
        Position in the original function's flattened parameters or results.
    name : str
    shape : tuple of int or str
        Whole shape; a dim whose size is that of the inputs of a run is an expression of the names
        of dims, such as ``past + seq``.
    dtype : str
    labels : tuple of int
        Placement on its mesh.
    mesh : pair of tuples of int, optional
        The shape and device ids of the mesh on which it is placed, where that is not the entry's
        first mesh.
    index_range : tuple of int
        The range of an input that holds indices: the lowest index, the first beyond the highest
        and, where it exists, a further number that is allowed; empty for others.
    segments : Segments, optional
        How segments of an input are interleaved, before it is sharded.
    """

    index: int
    name: str
    shape: tuple[Any, ...]
    dtype: str
    labels: Labels
    mesh: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    index_range: tuple[int, ...] = ()
    segments: Segments | None = None

    @property
    def is_object(self) -> bool:
        """Return whether each device has its own object here, and no part of a tensor."""
        return self.dtype == OBJECT

    def to_dict(self) -> dict[str, object]:
        """Return an item of ``dist.io``."""
        item = {
            "index": self.index,
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "placement": placement_text(self.labels),
        }
        if self.mesh is not None:
            item["mesh"] = {"shape": list(self.mesh[0]), "devices": list(self.mesh[1])}
        if self.index_range:
            item["index_range"] = list(self.index_range)
        if self.segments is not None:
            item["segments"] = self.segments.to_list()
        return item


@dataclass(frozen=True)
class EntryFunction:
    """An entry function, which runs on all devices that belong to the same meshes.

    Attributes
    ----------
    function : str
        Name in the module.
    mesh_index : int
        The first mesh it works on.
    mesh_shape : tuple of int
    ranks : tuple of int
        Device ids that run it, in row-major order of the first mesh.
    inputs, outputs : tuple of Port
    mesh_ranks : tuple of int
        The device ids of the first mesh, in its order; those of ``ranks`` unless given.
    dims : mapping of str to int
        The dims whose sizes are those of the inputs of a run, and the number of equal parts into
        which devices divide each.
    """

    function: str
    mesh_index: int
    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    mesh_ranks: tuple[int, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)

    def mesh_of(self, port: Port) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape and device ids of the mesh that a port is placed on."""
        return port.mesh or (self.mesh_shape, self.mesh_ranks or self.ranks)

    def bounds(self, port: Port, rank: int) -> Bounds:
        """Return the box of the full tensor that a rank holds, without padding.

        Of interleaved segments it is the box of the tensor in the interleaved order.
        """
        sizes, ranks = self.mesh_of(port)
        coords = tuple(int(c) for c in np.unravel_index(ranks.index(rank), sizes))
        return tuple(shard_slices(self._sizes(port), port.labels, sizes, coords))

    def local_shape(self, port: Port) -> tuple[int, ...]:
        """Return the (padded) local shape: ``ceil(n / k)`` per dim that is split into k shards."""
        sizes, _ = self.mesh_of(port)
        return tuple(int(n) for n in local_shape(self._sizes(port), port.labels, sizes))

    def _sizes(self, port: Port) -> tuple[int, ...]:
        """Return the shape of a port; refuse (DIST0602) dims that have no size."""
        unknown = [str(n) for n in port.shape if not isinstance(n, int)]
        if unknown:
            raise EngineError(
                "DIST0602",
                f"the dim {unknown[0]} has no size before a run",
                location=f"{self.function}/{port.name}",
                remedy="Call td.run with the inputs, or distribute the module with sizes: "
                "td.bind_dims.",
            )
        return port.shape

    def output_location(self, port: Port) -> str:
        """Return the text for messages."""
        return f'{self.function}/output {port.index} "{port.name}"'


Entries = Sequence[EntryFunction]


def wrong_module(location: str, problem: str) -> EngineError:
    """Return the error DIST0603 for a module that is not at level 5."""
    return EngineError(
        "DIST0603", problem, location=location, remedy="Lower the module with LowerDistIR first."
    )


def np_dtype(name: str) -> np.dtype[np.generic]:
    """Return the NumPy type of a TVM dtype name (``bfloat16`` and 8-bit floats by ml_dtypes)."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype_class: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return dtype_class


def read_port(item: Mapping[str, Any], location: str, mesh_shape: Sequence[int]) -> Port:
    """Return the port of an item of ``dist.io``.

    Raises
    ------
    EngineError
        DIST0603 when it cannot be read.
    """
    try:
        port = Port(
            int(item["index"]),
            str(item["name"]) if "name" in item else f"#{int(item['index'])}",
            tuple(str(n) if isinstance(n, str) else int(n) for n in item["shape"]),
            str(item["dtype"]),
            parse_placement(str(item["placement"])),
            _port_mesh(item["mesh"]) if "mesh" in item else None,
            _index_range(item["index_range"]) if "index_range" in item else (),
            Segments.from_list(item["segments"]) if "segments" in item else None,
        )
        if port.segments is not None:
            port.segments.check(port.shape)
    except (KeyError, TypeError, ValueError) as err:
        raise wrong_module(location, f"an item of dist.io cannot be read: {err}") from err
    sizes = port.mesh[0] if port.mesh else mesh_shape
    check_placement(port.labels, sizes, len(port.shape), f"{location}/{port.name}")
    return port


def _port_mesh(item: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape, devices = (tuple(int(n) for n in item[k]) for k in ("shape", "devices"))
    if len(set(devices)) != math.prod(shape):
        raise ValueError(f"{len(set(devices))} devices for the mesh {shape}")
    return shape, devices


def _index_range(numbers: Sequence[int]) -> tuple[int, ...]:
    bounds = tuple(int(n) for n in numbers)
    if len(bounds) not in (2, 3):
        raise ValueError(f"{len(bounds)} numbers for a range of indices")
    return bounds


def _leaf_order(names: Sequence[str]) -> dict[str, int]:
    """Return a sort key by numbers for tensors ``x_0``, ``x_1_0``, ... of a tuple parameter."""
    words = {n: [int(w) if w.isdigit() else w for w in n.split("_")] for n in names}
    return {name: i for i, name in enumerate(sorted(names, key=lambda n: words[n]))}


def flat_inputs(entries: Sequence[EntryFunction]) -> list[EntryFunction]:
    """Count the inputs' positions over flattened parameters, for tuples included."""
    names: dict[int, dict[str, None]] = {}
    for entry in entries:
        for port in entry.inputs:
            names.setdefault(port.index, {}).setdefault(port.name)
    if all(len(same) == 1 for same in names.values()):
        return list(entries)
    flat: dict[tuple[int, str], int] = {}
    for index in range(max(names) + 1):
        order = _leaf_order(list(names.get(index, {"": None})))
        flat.update({(index, n): len(flat) + i for n, i in order.items()})
    return [
        replace(e, inputs=tuple(replace(p, index=flat[p.index, p.name]) for p in e.inputs))
        for e in entries
    ]


def check_entries(entries: Sequence[EntryFunction]) -> tuple[EntryFunction, ...]:
    """Return the entries in mesh order; DIST0603 when two share a device.

    See :func:`flat_inputs` for the positions of their inputs.
    """
    ordered = sorted(flat_inputs(entries), key=lambda e: (e.mesh_index, e.function))
    owner: dict[int, str] = {}
    for entry in ordered:
        devices = entry.mesh_ranks or entry.ranks
        if len(devices) != math.prod(entry.mesh_shape):
            raise wrong_module(
                entry.function, f"{len(devices)} devices for the mesh {entry.mesh_shape}"
            )
        if not entry.ranks or not set(entry.ranks) <= set(devices):
            raise wrong_module(
                entry.function, f"it runs on {list(entry.ranks)}, its mesh has {list(devices)}"
            )
        for port in (*entry.inputs, *entry.outputs):
            if not set(entry.ranks) <= set(entry.mesh_of(port)[1]):
                raise wrong_module(
                    f"{entry.function}/{port.name}", "it is on a mesh without some of the ranks"
                )
        for rank in entry.ranks:
            if rank in owner:
                raise wrong_module(
                    entry.function, f"device {rank} belongs to {owner[rank]} and {entry.function}"
                )
            owner[rank] = entry.function
    return tuple(ordered)
