# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the results of all ranks and join them to full outputs.

Nothing here needs IR: TVM's runtime-only library is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from tvm_distir.core.ir import placement_text
from tvm_distir.support import EngineError

from .device_objects import DeviceObjects
from .io_layout import Bounds, Entries, EntryFunction, Port, np_dtype, wrong_module
from .tensors import Array

_CHUNK = 1 << 20


def check_local(array: Array, port: Port, entry: EntryFunction, rank: int, location: str) -> None:
    """Refuse (DIST0603) a rank's output of another shape or type than ``dist.io`` promises."""
    size, dtype = entry.local_shape(port), np_dtype(port.dtype)
    if array.shape != size or array.dtype != dtype:
        raise EngineError(
            "DIST0603",
            f"rank {rank} returned {array.dtype}{list(array.shape)}, "
            f"dist.io declares {dtype}{list(size)}",
            location=location,
            remedy="Lower the module again: its entry function does not match its dist.io.",
        )


def different_bits(first: int, rank: int, port: Port, location: str) -> EngineError:
    """Return the error DIST0604 for two replicas that differ."""
    return EngineError(
        "DIST0604",
        f"ranks {first} and {rank} hold different bits of a value that is placed "
        f'"{placement_text(port.labels)}"',
        location=location,
        remedy="Add the missing collective, or use an engine that reduces in a fixed order.",
    )


class _OutputAssembly:
    """A full output that is assembled from the unpadded parts of a mesh's ranks.

    A part that is the full output is not copied.
    """

    def __init__(self, port: Port, missing: Sequence[int]) -> None:
        self.full: Array = np.empty(0)
        self._missing = dict.fromkeys(missing)
        self._holder: dict[Bounds, tuple[int, Array]] = {}

    def add(self, entry: EntryFunction, port: Port, rank: int, part: Array) -> None:
        """Add a rank's local array."""
        location = entry.output_location(port)
        check_local(part, port, entry, rank, location)
        del self._missing[rank]
        bounds = entry.bounds(port, rank)
        # Without the dots, a part of shape () would be a number and no array.
        box: tuple[slice | EllipsisType, ...] = (*(slice(0, b - a) for a, b in bounds), ...)
        content = part[box]
        if bounds in self._holder:
            first, other = self._holder[bounds]
            if not same_bits(content, other):
                raise different_bits(first, rank, port, location)
            return
        if content.shape == port.shape:
            self.full = content if content.flags.writeable else content.copy()
        else:
            if not self._holder:
                self.full = np.zeros(port.shape, content.dtype)
            self.full[tuple(slice(a, b) for a, b in bounds)] = content
        self._holder[bounds] = (rank, content)

    def check(self, location: str) -> None:
        """Refuse (DIST0603) a mesh of which some ranks give nothing."""
        if self._missing:
            raise wrong_module(
                location, f"the ranks {list(self._missing)} of its mesh do not return it"
            )


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays of the same type are equal bit for bit (NaN and -0.0 included)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    word = np.dtype(f"u{a.dtype.itemsize}") if a.dtype.itemsize in (1, 2, 4, 8) else np.uint8
    first, second = (np.ascontiguousarray(v).reshape(-1).view(word) for v in (a, b))
    return all(
        bool((first[i : i + _CHUNK] == second[i : i + _CHUNK]).all())
        for i in range(0, first.size, _CHUNK)
    )


def check_results(entries: Entries, results: Mapping[int, Sequence[Array]]) -> None:
    """Refuse (DIST0603) ranks that gave too few or too many results, and missing outputs."""
    indices = {port.index for entry in entries for port in entry.outputs}
    if sorted(indices) != list(range(len(indices))):
        raise wrong_module(
            "module", f"the entries return outputs {sorted(indices)}: an output is missing"
        )
    for entry in entries:
        for rank in entry.ranks:
            if rank in results and len(results[rank]) != len(entry.outputs):
                raise wrong_module(
                    entry.function,
                    f"rank {rank} returned {len(results[rank])} results, "
                    f"dist.io lists {len(entry.outputs)}",
                )


def gather_outputs(entries: Entries, results: Mapping[int, Sequence[Array]]) -> list[Any]:
    """Return the full outputs, in the order of the original function's flattened results.

    An output that is an object of each device is :class:`.device_objects.DeviceObjects`.

    Parameters
    ----------
    entries : sequence of EntryFunction
    results : mapping of rank to its local results
        The results of every rank, in ``dist.io`` order.

    Raises
    ------
    EngineError
        DIST0604 when replicas (on a single mesh or on several) differ in any bit, DIST0603 when an
        output is missing or has a wrong shape or type.
    """
    check_results(entries, results)
    objects: dict[int, dict[int, Any]] = {}
    joined: dict[int, dict[Any, tuple[str, _OutputAssembly]]] = {}
    for entry in entries:
        for k, port in enumerate(entry.outputs):
            if port.is_object:
                objects.setdefault(port.index, {}).update(
                    (rank, results[rank][k]) for rank in entry.ranks
                )
                continue
            mesh = entry.mesh_of(port)
            location = entry.output_location(port)
            copies = joined.setdefault(port.index, {})
            _, assembly = copies.setdefault(mesh, (location, _OutputAssembly(port, mesh[1])))
            for rank in entry.ranks:
                assembly.add(entry, port, rank, results[rank][k])
    return [
        DeviceObjects(objects[i]) if i in objects else _agreed(joined[i])
        for i in range(len(joined) + len(objects))
    ]


def _agreed(copies: Mapping[Any, tuple[str, _OutputAssembly]]) -> Array:
    """Return the output, which must be the same on all meshes that return it."""
    (first, assembly), *others = copies.values()
    for location, other in copies.values():
        other.check(location)
    for location, other in others:
        if not same_bits(assembly.full, other.full):
            remedy = "Return it from a single mesh, or reduce it before it is returned."
            raise EngineError(
                "DIST0604", f"it differs from {first}", location=location, remedy=remedy
            )
    return assembly.full
