# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Share the memory of inputs and outputs with ranks that are in this process."""

from __future__ import annotations

import bisect
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tvm_distir.execution.runtime.program.io_layout import Entries, Port
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import (
    Array,
    can_share,
    exclusive_arrays,
    share_tensor,
    to_array,
    to_tensor,
)

from .base import Engine, LocalResults

RankTensors = Mapping[int, list[Any]]
"""TVM tensors, or objects, by rank, in the order of ``dist.io``."""


class LocalEngine(Engine):
    """An engine whose ranks are in this process.

    Arrays that are aligned and contiguous are not copied, unless the program may overwrite them;
    donated ones are overwritten.
    """

    takes_objects = True

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Run every rank's entry function on its local inputs.

        Raises
        ------
        EngineError
            As :meth:`run_tensors`.
        """
        entries = program.entries
        arrays = {rank: local.of(entry, rank) for entry in entries for rank in entry.ranks}
        bound = _BoundInputs(entries, arrays, self.donated, program.overwritten)
        results = self.run_tensors(program, bound.tensors)
        return {rank: [bound.output(t) for t in results[rank]] for rank in results}

    @abstractmethod
    def run_tensors(self, program: Runnable, tensors: RankTensors) -> RankTensors:
        """Run every rank's entry function on tensors, which it may overwrite as it states.

        Raises
        ------
        EngineError
            The first failure of any rank: DIST0610 to DIST0613, or what the rank raised.
        """


class _BoundInputs:
    """The tensors of a run, over the memory of its arrays where this is safe.

    Parameters
    ----------
    entries : sequence of EntryFunction
    arrays : mapping of int to list of array
        The local inputs by rank; replicas may share an array.
    donated, overwritten : frozenset of int
        The positions of the inputs that the caller gives away, and that the program may overwrite.
    """

    def __init__(
        self,
        entries: Entries,
        arrays: Mapping[int, list[Array]],
        donated: frozenset[int],
        overwritten: frozenset[int],
    ) -> None:
        exclusive = exclusive_arrays(
            (array, port.index in donated) for _, port, array in _ports(entries, arrays)
        )
        self.tensors: dict[int, list[Any]] = {rank: [] for rank in arrays}
        shared: dict[int, Any] = {}
        self._spans: list[tuple[int, int]] = []
        for rank, port, array in _ports(entries, arrays):
            if id(array) in exclusive:
                tensor = share_tensor(array)
            elif port.index in overwritten or not isinstance(array, np.ndarray | np.generic):
                tensor = to_tensor(array)
            else:
                if id(array) not in shared:
                    tensor = share_tensor(array) if can_share(array) else to_tensor(array)
                    shared[id(array)] = tensor
                    self._spans.append((tensor.data_ptr(), tensor.data_ptr() + array.nbytes))
                tensor = shared[id(array)]
            self.tensors[rank].append(tensor)
        self._spans.sort()

    def output(self, tensor: Any) -> Any:
        """Return the array of a result; a copy of one that is a view of an input."""
        array = to_array(tensor)
        if isinstance(array, np.ndarray) and array.size:
            address = array.__array_interface__["data"][0]
            number = bisect.bisect_right(self._spans, (address, float("inf"))) - 1
            if number >= 0 and address < self._spans[number][1]:
                return array.copy()
        return array


def _ports(
    entries: Entries, arrays: Mapping[int, list[Array]]
) -> Iterator[tuple[int, Port, Array]]:
    for entry in entries:
        for rank in entry.ranks:
            for port, array in zip(entry.inputs, arrays[rank], strict=True):
                yield rank, port, array
