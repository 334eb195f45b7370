# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a pipelined step of a program: stage kinds, stages, ranks and schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from tvm_distir.core.plan import Schedule
from tvm_distir.support import Count, Text, one_of

from .parts import Value
from .stage_kind import CountPair, StageKind
from .writing import plain

DIRECTIONS = ("forward", "backward", "sum", "total")
"""Activations, gradients, a sum on its way along the stages, a whole sum."""

_Port = tuple[int, int]


@dataclass(frozen=True)
class Stage:
    """A stage. Its rank, which is also the number of its mesh, follows from the schedule.

    Attributes
    ----------
    role : int
    names : tuple of str
        The full step's inputs for the ``params`` of the stage kind. Stages of the same rank share
        inputs of the same name.
    results : tuple of str
        The full step's outputs for the ``results`` of the stage kind; empty where another stage
        returns the output.
    """

    role: Count
    names: tuple[Text, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Edge:
    """A value that goes from a stage to another; a message where their ranks differ.

    Attributes
    ----------
    source, target : (int, int)
        Stage and slot.
    direction : str
        The direction, from :data:`DIRECTIONS`.
    bytes : (int, int)
        The bytes of a device's tensor at either end.
    wire_bytes : (int, int)
        The most bytes that a device sends, and receives.
    placements : (str, str)
        The placements at either end.
    split : int
        Devices that each send a part of what they hold alike, which is gathered behind; 1: all of
        them send the whole.
    """

    source: CountPair = field(metadata={"alias": "from"})
    target: CountPair = field(metadata={"alias": "to"})
    direction: Annotated[str, one_of(DIRECTIONS)]
    bytes: CountPair
    wire_bytes: CountPair
    placements: tuple[Text, Text]
    split: int = field(default=1, metadata={"init": False})

    @property
    def part_bytes(self) -> tuple[int, int]:
        """Return the most bytes that a device sends, and receives, of a message in parts."""
        sent, received = self.wire_bytes
        return -(-sent // self.split), -(-received // self.split)


@dataclass(frozen=True)
class StageSum:
    """A sum of a term per stage.

    Attributes
    ----------
    name : str
    stages : tuple of int
        The stages, in the order in which their terms are added.
    edges : tuple of Edge
        The edges from each of them to the next; then from the last to those before, once per rank.
    """

    name: Text
    stages: tuple[Count, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class PipelineProgram:
    """Stages, schedule, and the messages between stages.

    Attributes
    ----------
    schedule : Schedule
        The schedule, whose rank r works on mesh r of the program.
    stage_kinds : tuple of StageKind
    stages : tuple of Stage
    edges : tuple of Edge
        Activations and gradients, in the order in which a stage sends them.
    sums : tuple of StageSum
        The sums, in the order in which they are computed.
    """

    schedule: Schedule
    stage_kinds: tuple[StageKind, ...]
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    sums: tuple[StageSum, ...] = ()

    def stage_kind_of(self, stage: int) -> StageKind:
        """Return the kind of a stage."""
        return self.stage_kinds[self.stages[stage].role]

    def inputs(self, only: int | None = None) -> Iterator[tuple[int, str, Value]]:
        """Yield the inputs and weights of the full step: rank, name and value, once per rank.

        ``only`` those of a rank, where it is given.
        """
        seen: set[tuple[int, str]] = set()
        for stage, rank in zip(self.stages, self.schedule.rank_of, strict=True):
            if only not in (None, rank):
                continue
            stage_kind = self.stage_kinds[stage.role]
            for name, slot in zip(stage.names, stage_kind.params, strict=True):
                if (rank, name) not in seen:
                    seen.add((rank, name))
                    yield rank, name, stage_kind.slots[slot]

    @functools.cached_property
    def all_edges(self) -> tuple[Edge, ...]:
        """Return the edges between stages, then those of sums over stages."""
        return (*self.edges, *(edge for stage_sum in self.sums for edge in stage_sum.edges))

    def functions_of(self, rank: int) -> list[str]:
        """Return the names of the functions of a rank's phases, each once and in order."""
        stages = (stage for stage, other in enumerate(self.schedule.rank_of) if other == rank)
        return sorted({p.function for stage in stages for p in self.stage_kind_of(stage).phases})

    def functions(self) -> list[str]:
        """Return the names of the functions of all phases, each once."""
        return list(
            dict.fromkeys(p.function for stage_kind in self.stage_kinds for p in stage_kind.phases)
        )

    def sums_of(self, stage: int) -> list[int]:
        """Numbers of the sums that a stage takes part in, in the order of its kind's."""
        return [i for i, stage_sum in enumerate(self.sums) if stage in stage_sum.stages]

    def add_up(
        self,
        number: int,
        run: Callable[[int, str], None],
        copy: Callable[[_Port, _Port], None],
        move: Callable[[Edge], None],
    ) -> None:
        """Call the parts of a sum over stages in order, for the stages of all ranks.

        Parameters
        ----------
        number : int
            The sum.
        run : callable
            Takes a stage and the name of a unit.
        copy : callable
            Takes two slots of a rank, each a stage and a slot.
        move : callable
            Takes an edge, whose value is handed over or sent.
        """
        stage_sum, rank_of = self.sums[number], self.schedule.rank_of
        chain = {e.target[0]: e for e in stage_sum.edges if e.direction == "sum"}
        positions = {s: self.sums_of(s).index(number) for s in stage_sum.stages}
        slots = {s: self.stage_kind_of(s).sums[position] for s, position in positions.items()}
        for stage, position in positions.items():
            run(stage, f"part:{position}")
            if stage in chain:
                move(chain[stage])
                run(stage, f"add:{position}")
            else:
                copy((stage, slots[stage][0]), (stage, slots[stage][1]))
        totals = [e for e in stage_sum.edges if e.direction == "total"]
        for edge in totals:
            move(edge)
        known = {rank_of[s]: s for s in (*(e.target[0] for e in totals), stage_sum.stages[-1])}
        for stage in stage_sum.stages:  # those that were not told take the sum of one of their rank
            other = known[rank_of[stage]]
            copy((other, slots[other][1]), (stage, slots[stage][1]))

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of a pipelined program."""
        parts = {key: plain(getattr(self, key)) for key in ("stages", "edges", "sums")}
        return {"roles": plain(self.stage_kinds), "schedule": self.schedule.to_dict(), **parts}
