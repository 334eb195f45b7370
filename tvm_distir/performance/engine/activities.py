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
from .rank_programs import COPY, MARK, RANK_STREAMS, RECV, RUN, SEND, WAIT, RankPrograms

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

    @staticmethod
    def none(units: RankPrograms) -> Loads:
        """Return loads without contention."""
        classes = len(units.steps) + len(units.edges)
        return Loads(
            np.zeros(0), np.arange(classes + 1), np.full(classes, ENDLESS), np.ones(classes),
            np.zeros(classes + 1, np.int64), np.zeros(0, np.int64), np.zeros(0),
            np.full((classes, 2), -1, np.int64), 1.0,
        )  # fmt: skip


@dataclass(frozen=True)
class Activities:
    """Runs of units, messages and joins.

    Attributes
    ----------
    matrix : int64 array
        Maps of kinds of units in sequence, each (outputs, ports).
    matrix_begin, matrix_ports : int64 arrays (kinds,)
        The beginning of each kind, and its ports.
    kind, group, rank, spent : int64 arrays (activities,)
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
    spent: Ints
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


class ActivityGraphBuilder:
    """Builder of activity graphs: it walks the programs of all ranks with tokens for times."""

    def __init__(self, maps: FunctionSummaries, units: RankPrograms) -> None:
        self.units = units
        ranks = units.program_begin.size - 1
        self.streams = [[AT_ZERO] * RANK_STREAMS for _ in range(ranks)]
        self.cells = [ALL_ALONG] * units.cells
        self.sent = np.full((len(units.edges), units.micros), -1, np.int64)
        self.runs: list[list[int]] = [[] for _ in range(ranks)]
        self.rows: list[tuple[int, int, int, int]] = []
        self.ins: list[int] = []
        self.in_begin, self.out_begin = [0], [2]
        self.matrices: list[Ints] = []
        self.reads: list[list[tuple[int, int]]] = []
        self.writes: list[list[tuple[int, int]]] = []
        at = 0
        for function in units.kind_function.tolist():
            matrix, ports = maps.matrix(function), maps.ports(function)
            places = units.kind_places[at:].reshape(-1, 2)
            count = len(maps.independent_inputs(function))
            results = len(matrix) - STREAM_PORTS
            at += 2 * (count + results)
            placed = [r for r in range(results) if places[count + r, 0] >= 0]
            self.reads.append([(int(a), int(b)) for a, b in places[ports]])
            self.writes.append([(int(a), int(b)) for a, b in places[[count + r for r in placed]]])
            rows = [*range(STREAM_PORTS), *(STREAM_PORTS + r for r in placed)]
            self.matrices.append(matrix[rows])

    def woven(self) -> ActivityGraph:
        """Build the graph: advance every rank until none can proceed."""
        units, ranks = self.units, len(self.streams)
        position, step, moved = [0] * ranks, [0] * ranks, True
        begin, program = units.template_begin.tolist(), units.programs.tolist()
        steps, first = units.steps.tolist(), units.program_begin.tolist()
        while moved:
            moved = False
            for rank in range(ranks):
                while position[rank] < first[rank + 1] - first[rank]:
                    template, micro = program[first[rank] + position[rank]]
                    at = begin[template] + step[rank]
                    if at == begin[template + 1]:
                        position[rank], step[rank] = position[rank] + 1, 0
                        continue
                    if not self._do(rank, at, steps[at], micro):
                        break
                    step[rank] += 1
                    moved = True
        sizes = [matrice.size for matrice in self.matrices]
        rows = np.array(self.rows, np.int64).reshape(-1, 4)
        kind, group, owner, duration = np.ascontiguousarray(rows.T)
        activities = Activities(
            np.concatenate(
                [np.zeros(0, np.int64), *(matrice.ravel() for matrice in self.matrices)]
            ),
            np.cumsum([0, *sizes])[:-1].astype(np.int64),
            np.array([matrice.shape[1] for matrice in self.matrices], np.int64),
            kind,
            group,
            owner,
            duration,
            np.array(self.in_begin, np.int64),
            np.array(self.ins, np.int64),
            np.array(self.out_begin, np.int64),
        )
        return ActivityGraph(
            activities,
            np.array([run for runs in self.runs for run in runs], np.int64),
            self.sent,
            np.array(self.streams, np.int64),
            np.array(position, np.int64),
        )

    def _add(
        self, kind: int, group: int, rank: int, duration: int, ins: list[int], outs: int
    ) -> int:
        """Add an activity and return the first token that it makes."""
        token = self.out_begin[-1]
        self.rows.append((kind, group, rank, duration))
        self.ins += ins
        self.in_begin.append(len(self.ins))
        self.out_begin.append(token + outs)
        return token

    def _do(self, rank: int, at: int, row: list[int], micro: int) -> bool:
        """Execute a step and return whether it was possible."""
        kind, a, b, c, d = row
        streams, cells = self.streams[rank], self.cells
        if kind == RUN:
            self._run(rank, at, a, b, micro)
        elif kind == COPY:
            cells[c + d * micro] = cells[a + b * micro]
        elif kind == SEND:
            self.sent[a, micro] = len(self.rows)
            duration = int(self.units.edges[a, 1])
            ins = [streams[d], cells[b + c * micro]]
            streams[d] = self._add(FLOW, len(self.units.steps) + a, rank, duration, ins, 1)
        elif kind == RECV:
            if self.sent[a, micro] < 0:
                return False
            cells[b + c * micro] = self.out_begin[int(self.sent[a, micro])]
        elif kind == MARK:
            cells[b + c * micro] = streams[a]
        elif kind == WAIT:
            streams[a] = self._add(JOIN, 0, rank, 0, [streams[a], cells[b + c * micro]], 1)
        return True

    def _run(self, rank: int, at: int, kind: int, base: int, micro: int) -> None:
        streams, cells = self.streams[rank], self.cells
        ins = streams[:STREAM_PORTS]
        ins += [cells[base + place + stride * micro] for place, stride in self.reads[kind]]
        self.runs[rank].append(len(self.rows))
        token = self._add(kind, at, rank, 0, ins, len(self.matrices[kind]))
        streams[:STREAM_PORTS] = range(token, token + STREAM_PORTS)
        for number, (place, stride) in enumerate(self.writes[kind]):
            cells[base + place + stride * micro] = token + STREAM_PORTS + number
