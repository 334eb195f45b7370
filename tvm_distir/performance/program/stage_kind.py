# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the kinds of stages of a pipelined step: their phases and slots."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tvm_distir.support import Count, Text

from .parts import ReadValue

COUNT, COUNT_NEXT = "count", "count_next"
BEGIN, ROWS, END = "begin", "rows", "end"
FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"
ACCUMULATE, NEXT = "accumulate", "accumulate_next"
GATHER, REDUCE = "gather", "reduce"
"""The phases of a distributed optimizer that overlaps: gathers of weights in the first forward
pass, reductions of gradients in the last backward pass. Simulations add them; no file has them."""
PART, ADD = "part", "add"
PHASES = (
    COUNT, COUNT_NEXT, BEGIN, ROWS, FORWARD, BACKWARD, WEIGHT, ACCUMULATE, NEXT, PART, ADD, END,
)  # fmt: skip
"""The phases of a stage: before all micro-batches, per sum over the whole batch that the loss
needs, its term of the first micro-batch, and the sum with the term of another; the rest that is
computed once; for each micro-batch its rows of the data, forward, backward, gradients of weights,
sums over micro-batches (the first, and those that follow); after all of them, per sum over stages,
its term, the sum of the preceding stages and of it, the rest."""
NUMBERED = ((COUNT, COUNT_NEXT), (PART, ADD))
"""Phases with a number in their names, ``count:0``, in the groups that repeat per number."""
CountPair = tuple[Count, Count]


@dataclass(frozen=True)
class Phase:
    """A function of a stage.

    Attributes
    ----------
    name : str
        The name, from :data:`PHASES`; those of a sum with its number, ``part:0``
        (:data:`NUMBERED`).
    function : str
    inputs, outputs : tuple of int
        The slots that its parameters are read from and its results are written to. A phase may
        write a slot that it reads: sums that go on.
    """

    name: Text
    function: Text
    inputs: tuple[Count, ...]
    outputs: tuple[Count, ...]


@dataclass(frozen=True)
class StageKind:
    """Kind of stage; stages of a kind run the same phases.

    Attributes
    ----------
    name : str
    slots : tuple of Value
        The values that its phases pass to each other and to other stages, as a device holds them.
        Slots that ``rows``, ``forward``, ``backward`` and ``weight`` write exist per micro-batch,
        except results of the full step; the others exist once.
    params : tuple of int
        Slots that the whole step gives, with their roles: there from the beginning.
    results : tuple of int
        Slots that are results of the whole step.
    sums : tuple of (int, int)
        The slot of its term, and that of the sum, for each sum over stages that it takes part in.
    updates : tuple of (int, int)
        Slots of parameters, and of the results that take their place: what ``forward`` writes, for
        the next micro-batch; the others, where the schedule stashes weights, behind each.
    phases : tuple of Phase
        The phases in the order of :data:`PHASES`; a phase that does nothing is left out.
    """

    name: Text
    slots: tuple[ReadValue, ...]
    params: tuple[Count, ...]
    results: tuple[Count, ...]
    sums: tuple[CountPair, ...]
    updates: tuple[CountPair, ...]
    phases: tuple[Phase, ...]

    @functools.cached_property
    def carried(self) -> tuple[tuple[int, int], ...]:
        """Return the ``updates`` that the forward pass of a micro-batch makes for the next."""
        forward = self.phase(FORWARD)
        forward_outputs = () if forward is None else forward.outputs
        return tuple(pair for pair in self.updates if pair[1] in forward_outputs)

    @functools.cached_property
    def updated(self) -> tuple[tuple[int, int], ...]:
        """Return the other ``updates``."""
        return tuple(pair for pair in self.updates if pair not in self.carried)

    @functools.cached_property
    def stash(self) -> tuple[int, ...]:
        """Return the slots that the forward pass of a micro-batch saves for its later phases."""
        available, needed, once = set[int](), set[int](), {*self.params, *self.results}
        for phase in self.phases:
            if phase.name in (ROWS, FORWARD):
                available.update(phase.inputs if phase.name == FORWARD else (), phase.outputs)
            elif phase.name in (BACKWARD, WEIGHT, ACCUMULATE, NEXT):
                needed.update(phase.inputs)
            elif phase.name.partition(":")[0] in (COUNT, BEGIN):
                once.update(phase.outputs)
        return tuple(sorted((available & needed) - once))

    @functools.cached_property
    def counts(self) -> int:
        """Return how many sums over the whole batch the loss needs before all micro-batches."""
        return sum(phase.name.startswith(f"{COUNT}:") for phase in self.phases)

    def phase(self, name: str) -> Phase | None:
        """Return the phase of a name."""
        return next((phase for phase in self.phases if phase.name == name), None)
