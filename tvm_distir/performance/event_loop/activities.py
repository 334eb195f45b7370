# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Model units and messages as activities whose speeds depend on contention.

An activity passes a *token* to another: a time that is known once it has come. Token 0 is available
all along, token 1 at time 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .function_summaries import STREAM_PORTS, FunctionSummaries, Ints
from .rank_programs import RankPrograms
from .rank_walk import RankWalk

Floats = npt.NDArray[np.float64]

FLOW, JOIN = -1, -2
"""Kinds that replace the map of a unit: a message; a join, which ends when all its tokens are
known."""

ALL_ALONG, AT_ZERO = 0, 1
"""Tokens."""

ENDLESS = 2.0**62
"""The end of the last piece of a class."""


@dataclass(frozen=True)
class Loads:
    """Loads that classes of activities put on links at full speed, piece by piece.

    Classes are the rows of ``RankPrograms.steps``, for the runs of units, then the edges.

    Attributes
    ----------
    capacity : float64 array (links,)
        The capacity of each link, in any unit per picosecond.
    piece_begin : int64 array (classes + 1,)
        The range of pieces of each class: class c has the pieces ``piece_begin[c] : piece_begin[c +
        1]``, at least a single piece.
    until : float64 array (pieces,)
        Picoseconds behind the beginning at which a piece ends; :data:`ENDLESS` of the last.
    speed : float64 array (pieces,)
        The most that it may have of full speed, by what overlaps in it.
    load_begin, link, load : int64 (pieces + 1,), int64 (n,), float64 (n,) arrays
        The loads that each piece puts on links, in the units of the capacities; no load exceeds the
        capacity of its link.
    slows : int64 array (classes, 2)
        Ranks whose units run at most at ``beside`` while the class is in a piece with loads; -1.
    beside : float
        Fraction of full speed.
    """

    capacity: Floats
    piece_begin: Ints
    until: Floats
    speed: Floats
    load_begin: Ints
    link: Ints
    load: Floats
    slows: Ints
    beside: float


@dataclass(frozen=True)
class Activities:
    """Runs of units, messages and joins.

    Attributes
    ----------
    matrix : int64 array
        Maps of kinds of units in sequence, each (outputs, ports).
    matrix_begin, matrix_ports : int64 arrays (kinds,)
        The beginning of each kind, and its ports.
    kind, group, rank, durations : int64 arrays (activities,)
        Number of the map, or :data:`FLOW`, or :data:`JOIN`; class; rank of a unit; duration of a
        message that meets nothing.
    in_begin, ins : int64 arrays (activities + 1,), (n,)
        The tokens that each activity waits for: a unit has a token per port.
    out_begin : int64 array (activities + 1,)
        Activity a makes the tokens ``out_begin[a] : out_begin[a + 1]``.
    """

    matrix: Ints
    matrix_begin: Ints
    matrix_ports: Ints
    kind: Ints
    group: Ints
    rank: Ints
    durations: Ints
    in_begin: Ints
    ins: Ints
    out_begin: Ints


@dataclass(frozen=True)
class ActivityGraph:
    """The activities of units on ranks.

    Attributes
    ----------
    activities : Activities
    runs : int64 array (runs,)
        Activities that are runs, those of each rank in turn.
    sent : int64 array (edges, micros)
        Activity of each message, -1 where there is none.
    finish : int64 array (ranks, 6)
        Tokens of the streams behind the last step.
    position : int64 array (ranks,)
        The positions, as in :class:`.rank_programs.ActionTimes`.
    """

    activities: Activities
    runs: Ints
    sent: Ints
    finish: Ints
    position: Ints


class ActivityGraphBuilder(RankWalk[int]):
    """Builder of activity graphs: it walks the programs of all ranks with tokens for times."""

    def __init__(self, maps: FunctionSummaries, units: RankPrograms) -> None:
        super().__init__(maps, units, ALL_ALONG, AT_ZERO)
        self.sent = np.full((len(units.edges), units.micros), -1, np.int64)
        self.runs: list[list[int]] = [[] for _ in self.streams]
        self.rows: list[tuple[int, int, int, int]] = []
        self.ins: list[int] = []
        self.in_begin, self.out_begin = [0], [2]
        self.matrices: list[Ints] = []
        for function, stored in zip(units.kind_function.tolist(), self.stored, strict=True):
            rows = [*range(STREAM_PORTS), *(STREAM_PORTS + r for r in stored)]
            self.matrices.append(maps.matrix(function)[rows])

    def woven(self) -> ActivityGraph:
        """Build the graph."""
        self.advance()
        sizes = [matrix.size for matrix in self.matrices]
        rows = np.array(self.rows, np.int64).reshape(-1, 4)
        kind, group, owner, duration = np.ascontiguousarray(rows.T)
        tokens = (np.array(part, np.int64) for part in (self.in_begin, self.ins, self.out_begin))
        activities = Activities(
            np.concatenate([np.zeros(0, np.int64), *(matrix.ravel() for matrix in self.matrices)]),
            np.cumsum([0, *sizes])[:-1].astype(np.int64),
            np.array([matrix.shape[1] for matrix in self.matrices], np.int64),
            *(kind, group, owner, duration),
            *tokens,
        )
        runs = np.array([run for runs in self.runs for run in runs], np.int64)
        ends = (np.array(part, np.int64) for part in (self.streams, self.position))
        return ActivityGraph(activities, runs, self.sent, *ends)

    def _add(
        self, kind: int, group: int, rank: int, duration: int, ins: list[int], outs: int
    ) -> list[int]:
        """Add an activity and return the tokens that it makes."""
        token = self.out_begin[-1]
        self.rows.append((kind, group, rank, duration))
        self.ins += ins
        self.in_begin.append(len(self.ins))
        self.out_begin.append(token + outs)
        return list(range(token, token + outs))

    def run(
        self, rank: int, step: int, micro: int, streams: list[int], ports: list[int]
    ) -> tuple[list[int], list[int]]:
        """See :class:`.rank_walk.RankWalk`."""
        kind = int(self.units.steps[step, 1])
        self.runs[rank].append(len(self.rows))
        tokens = self._add(kind, step, rank, 0, [*streams, *ports], len(self.matrices[kind]))
        return tokens[:STREAM_PORTS], tokens[STREAM_PORTS:]

    def send(self, rank: int, edge: int, micro: int, stream: int, value: int) -> tuple[int, int]:
        """See :class:`.rank_walk.RankWalk`."""
        self.sent[edge, micro] = len(self.rows)
        group, duration = len(self.units.steps) + edge, int(self.units.edges[edge, 1])
        (token,) = self._add(FLOW, group, rank, duration, [stream, value], 1)
        return token, token

    def join(self, rank: int, stream: int, first: int, second: int) -> int:
        """See :class:`.rank_walk.RankWalk`."""
        (token,) = self._add(JOIN, 0, rank, 0, [first, second], 1)
        return token
