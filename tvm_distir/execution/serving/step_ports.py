# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide the inputs and outputs of a program into batch, weights, state and what is reported."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm_distir.execution.runtime.program.input_faults import bad_input
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.io_layout import Entries, EntryFunction, Port
from tvm_distir.execution.runtime.program.runnable import Runnable

RankSlots = Mapping[int, list[tuple[int, int]]]


@dataclass(frozen=True)
class StepPorts:
    """The inputs and outputs of a program that runs step by step.

    Attributes
    ----------
    resident : mapping of int to Port
        The inputs that stay with the ranks, by position.
    extras : frozenset of int
        Those that are no weights of the model: state of the optimizer, and caches.
    batch : mapping of int to Port
        The inputs of each step.
    batch_entries : tuple of EntryFunction
        The entries with these inputs alone.
    batch_slots : mapping of int to list of int
        The places of these inputs among all of a rank.
    reported : tuple of EntryFunction
        The entries with the outputs alone that are no state, numbered anew.
    reported_slots : mapping of int to list of int
        The places of these outputs among all of a rank.
    state_slots : mapping of int to list of (int, int)
        The places of outputs of each rank, with those of the inputs that they become.
    resharded : mapping of int to int
        The outputs that have another placement than the inputs that they become, by position.
    """

    resident: Mapping[int, Port]
    extras: frozenset[int]
    batch: Mapping[int, Port]
    batch_entries: tuple[EntryFunction, ...]
    batch_slots: Mapping[int, list[int]]
    reported: tuple[EntryFunction, ...]
    reported_slots: Mapping[int, list[int]]
    state_slots: RankSlots
    resharded: Mapping[int, int]

    @staticmethod
    def of(program: Runnable, known: Collection[int]) -> StepPorts:
        """Return the ports of a program of which some inputs are known.

        Raises
        ------
        EngineError
            DIST0602 for state without a first value.
        """
        entries, state = program.entries, program.state
        pairs = {**state.inputs, **state.caches}
        masters = (i for i, weight in state.masters.items() if weight in known)
        first = {*known, *state.zeros, *state.caches.values(), *masters}
        ports = input_ports(entries)
        for index in pairs.values():
            if index not in first:
                port = ports[index]
                needed = f"{port.dtype}{list(port.shape)} is required before the first step"
                raise bad_input(f"missing: {port.name}; {needed}", "Give it as a weight.", port)
        batch = {i: port for i, port in ports.items() if i not in first}
        reported, _ = without_state(entries, pairs)
        direct = {o: i for o, i in pairs.items() if _is_kept(entries, o, i)}
        return StepPorts(
            {i: port for i, port in ports.items() if i in first},
            state.optimizer | {*state.caches.values()},
            batch,
            tuple(
                replace(e, inputs=tuple(p for p in e.inputs if p.index in batch)) for e in entries
            ),
            {
                rank: [k for k, port in enumerate(entry.inputs) if port.index in batch]
                for entry in entries
                for rank in entry.ranks
            },
            reported,
            {
                rank: [k for k, port in enumerate(entry.outputs) if port.index not in pairs]
                for entry in entries
                for rank in entry.ranks
            },
            {rank: _pairs_of(entry, direct) for entry in entries for rank in entry.ranks},
            {output: index for output, index in pairs.items() if output not in direct},
        )

    def selected(self, extras: bool) -> dict[int, Port]:
        """Return the inputs that stay: all of them, or the weights of the model."""
        return {i: p for i, p in self.resident.items() if extras or i not in self.extras}


def _is_kept(entries: Entries, output: int, index: int) -> bool:
    """Return whether each function that takes a state also returns it, as it takes it."""
    for entry in entries:
        for port in (p for p in entry.inputs if p.index == index):
            returned = next((p for p in entry.outputs if p.index == output), None)
            if returned is None or port.segments is not None:
                return False
            if any(entry.bounds(returned, r) != entry.bounds(port, r) for r in entry.ranks):
                return False
    return True


def _pairs_of(entry: EntryFunction, pairs: Mapping[int, int]) -> list[tuple[int, int]]:
    slots = {port.index: slot for slot, port in enumerate(entry.inputs)}
    return [
        (number, slots[pairs[output.index]])
        for number, output in enumerate(entry.outputs)
        if pairs.get(output.index) in slots
    ]


def without_state(
    entries: Entries, state: Mapping[int, Any]
) -> tuple[tuple[EntryFunction, ...], list[int]]:
    """Return the entries with the outputs alone that are no state, and their positions."""
    positions = sorted({p.index for e in entries for p in e.outputs if p.index not in state})
    number = {index: i for i, index in enumerate(positions)}
    changed = tuple(
        replace(
            entry,
            outputs=tuple(
                replace(p, index=number[p.index]) for p in entry.outputs if p.index in number
            ),
        )
        for entry in entries
    )
    return changed, positions
