# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hold the weights and the state of a program as tensors of its ranks, between its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

from tvm_distir.execution.runtime.engines.bound_tensors import BoundTensors, memory_of
from tvm_distir.execution.runtime.engines.local_engine import LocalEngine
from tvm_distir.execution.runtime.program.inputs import Inputs, bind_inputs
from tvm_distir.execution.runtime.program.io_layout import Bounds, EntryFunction, Port
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.sharded import ShardedArray
from tvm_distir.execution.runtime.program.tensors import Array, to_array

from .step_ports import StepPorts


class ResidentTensors:
    """The tensors of a program that stay with its ranks.

    Parameters
    ----------
    program : Runnable
    ports : StepPorts
    values : mapping of int to array, Stored or ShardedArray
        The first values, by position.
    """

    def __init__(self, program: Runnable, ports: StepPorts, values: Mapping[int, Any]) -> None:
        self._program, self._ports, self._entries = program, ports, program.entries
        self._tensors: dict[int, list[Any]] = {
            rank: [None] * len(entry.inputs) for entry in self._entries for rank in entry.ranks
        }
        self._spans: list[tuple[int, int]] = []
        self.bind(values)

    def bind(self, values: Mapping[int, Any]) -> None:
        """Give the ranks their parts of some weights and state, by position."""
        entries = [
            replace(entry, inputs=tuple(p for p in entry.inputs if p.index in values))
            for entry in self._entries
        ]
        bound = self._bound(entries, LocalInputs(values))
        for entry in self._entries:
            slots = [i for i, port in enumerate(entry.inputs) if port.index in values]
            for rank in entry.ranks:
                for slot, tensor in zip(slots, bound.tensors[rank], strict=True):
                    self._tensors[rank][slot] = tensor
        tensors = [tensor for by_slot in self._tensors.values() for tensor in by_slot]
        self._spans = [memory_of(t) for t in tensors if isinstance(t, tvm.runtime.Tensor)]

    def _bound(self, entries: Sequence[EntryFunction], local: LocalInputs) -> BoundTensors:
        arrays = {rank: local.of(entry, rank) for entry in entries for rank in entry.ranks}
        return BoundTensors(entries, arrays, frozenset(), self._program.overwritten, self._spans)

    def step(self, engine: LocalEngine, batch: Inputs) -> dict[int, list[Any]]:
        """Run a step, and take over the state that it returns.

        Returns
        -------
        outputs : dict of int to list of array
            The local outputs that are no state, by rank.
        """
        ports = self._ports
        local = bind_inputs(ports.batch_entries, batch, ports.resident)
        bound = self._bound(ports.batch_entries, local)
        tensors = {rank: list(stay) for rank, stay in self._tensors.items()}
        for rank, slots in ports.batch_slots.items():
            for slot, tensor in zip(slots, bound.tensors[rank], strict=True):
                tensors[rank][slot] = tensor
        results = engine.run_tensors(self._program, tensors)
        for rank, pairs in ports.state_slots.items():
            for output, slot in pairs:
                self._tensors[rank][slot] = results[rank][output]
        self._reshard(results)
        return {
            rank: bound.outputs(results[rank][slot] for slot in slots)
            for rank, slots in ports.reported_slots.items()
        }

    def _reshard(self, results: Mapping[int, list[Any]]) -> None:
        """Cut the state again that is not returned as it is taken."""
        if not self._ports.resharded:
            return
        values = {}
        ports = [(e, {p.index: k for k, p in enumerate(e.outputs)}) for e in self._entries]
        for output, index in self._ports.resharded.items():
            holders = [(e, slots[output]) for e, slots in ports if output in slots]
            values[index] = _joined(holders, [e.outputs[slot] for e, slot in holders], results)
        self.bind(values)

    def full(self, index: int) -> Array:
        """Return a full array, which is a copy, by position."""
        holders = [
            (entry, slot)
            for entry in self._entries
            for slot, port in enumerate(entry.inputs)
            if port.index == index
        ]
        full = _joined(holders, [entry.inputs[slot] for entry, slot in holders], self._tensors)
        port = self._ports.resident[index]
        if port.segments is None:
            return full
        ranges = port.segments.targets(0, full.shape[port.segments.dim])
        rows = np.concatenate([np.arange(*piece) for piece in ranges])
        restored: Array = full.take(rows, port.segments.dim)
        return restored

    def saved(self) -> dict[int, dict[int, Array]]:
        """Return the local arrays of a checkpoint by rank and position: all but caches."""
        caches = {*self._program.state.caches.values()}
        return {
            rank: {
                port.index: to_array(self._tensors[rank][slot])
                for slot, port in enumerate(entry.inputs)
                if port.index in self._ports.resident and port.index not in caches
            }
            for entry in self._entries
            for rank in entry.ranks
        }


def _joined(
    holders: Sequence[tuple[EntryFunction, int]],
    ports: Sequence[Port],
    tensors: Mapping[int, list[Any]],
) -> Array:
    """Return the full array of a port of each entry, from the tensors of the ranks."""
    parts, boxes = dict[int, Array](), dict[int, Bounds]()
    for (entry, slot), port in zip(holders, ports, strict=True):
        parts |= {rank: to_array(tensors[rank][slot]) for rank in entry.ranks}
        boxes |= {rank: entry.bounds(port, rank) for rank in entry.ranks}
    return ShardedArray(parts, ports[0].shape, boxes).whole()
