# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bind the arrays of a run to tensors, over the same memory where this is safe."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from tvm_distir.execution.runtime.program.io_layout import Entries, Port, np_dtype
from tvm_distir.execution.runtime.program.tensors import (
    Array,
    can_share,
    exclusive_arrays,
    share_tensor,
    to_array,
    to_tensor,
)


class BoundTensors:
    """The tensors of a run, over the memory of its arrays where this is safe.

    Parameters
    ----------
    entries : sequence of EntryFunction
    arrays : mapping of int to list of array
        The local inputs by rank; replicas may share an array.
    donated, overwritten : frozenset of int
        The positions of the inputs that the caller gives away, and that the program may overwrite.
    spans : sequence of (int, int)
        The memory of further inputs: first address, and the first one behind it.

    Attributes
    ----------
    tensors : dict of int to list
        The tensors, or objects, by rank.
    spans : list of (int, int)
        The memory of all inputs that are not overwritten.
    """

    def __init__(
        self,
        entries: Entries,
        arrays: Mapping[int, list[Array]],
        donated: frozenset[int],
        overwritten: frozenset[int],
        spans: Sequence[tuple[int, int]] = (),
    ) -> None:
        exclusive = exclusive_arrays(
            (array, port.index in donated) for _, port, array in _ports(entries, arrays)
        )
        self.tensors: dict[int, list[Any]] = {rank: [] for rank in arrays}
        shared: dict[int, Any] = {}
        self.spans = list(spans)
        for rank, port, array in _ports(entries, arrays):
            if id(array) in exclusive:
                tensor = share_tensor(array)
            elif port.index in overwritten or not isinstance(array, np.ndarray):
                tensor = to_tensor(array)
            else:
                if id(array) not in shared:
                    tensor = share_tensor(array) if can_share(array) else to_tensor(array)
                    shared[id(array)] = tensor
                    self.spans.append(memory_of(tensor))
                tensor = shared[id(array)]
            self.tensors[rank].append(tensor)
        self.spans.sort()

    def outputs(self, tensors: Iterable[object]) -> list[Array]:
        """Return the arrays of a rank's results; none shares memory with another or an input."""
        arrays, known = list[Array](), set[int]()
        for array in map(to_array, tensors):
            address = _address(array)
            if address is not None and (address in known or self._is_input(address)):
                array = array.copy()
            elif address is not None:
                known.add(address)
            arrays.append(array)
        return arrays

    def _is_input(self, address: int) -> bool:
        number = bisect.bisect_right(self.spans, (address, float("inf"))) - 1
        return number >= 0 and address < self.spans[number][1]


def _address(array: object) -> int | None:
    """Return the address of an array, or None of objects and of arrays without elements."""
    if not isinstance(array, np.ndarray) or not array.size:
        return None
    address: int = array.__array_interface__["data"][0]
    return address


def memory_of(tensor: tvm.runtime.Tensor) -> tuple[int, int]:
    """Return the address of a tensor's memory, and the first one behind it."""
    size_bytes = math.prod(map(int, tensor.shape)) * np_dtype(str(tensor.dtype)).itemsize
    return tensor.data_ptr(), tensor.data_ptr() + size_bytes


def _ports(
    entries: Entries, arrays: Mapping[int, list[Array]]
) -> Iterator[tuple[int, Port, Array]]:
    for entry in entries:
        for rank in entry.ranks:
            for port, array in zip(entry.inputs, arrays[rank], strict=True):
                yield rank, port, array
