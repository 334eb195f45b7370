# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run units on ranks in plain Python, with max-plus products in NumPy."""

from __future__ import annotations

import numpy as np

from .function_summaries import (
    LATEST,
    NEVER,
    STREAM_PORTS,
    FunctionSummaries,
    Ints,
)
from .rank_programs import (
    COPY,
    MARK,
    RANK_STREAMS,
    RECV,
    RUN,
    SEND,
    WAIT,
    ActionTimes,
    RankPrograms,
)


def run_units(maps: FunctionSummaries, units: RankPrograms) -> ActionTimes:
    """Run units as early as possible; see :meth:`.function_summaries.FunctionSummaries.run`."""
    return _Run(maps, units).go()


def times_of(matrix: Ints, rows: Ints) -> Ints:
    """Return the max-plus product of a matrix (n, ports) with rows (ports, m)."""
    terms = matrix[:, :, None] + rows[None, :, :]
    present = (matrix[:, :, None] > NEVER) & (rows[None, :, :] > NEVER)
    matches: Ints = np.where(present, terms, NEVER).max(axis=1, initial=NEVER)
    return checked(matches)


def checked(matches: Ints) -> Ints:
    """Return the same times; raise OverflowError where one is too late."""
    if matches.max(initial=NEVER) > LATEST:
        raise OverflowError("a time is too long")
    return matches


class _Run:
    """A run of units."""

    def __init__(self, maps: FunctionSummaries, units: RankPrograms) -> None:
        self.maps, self.units = maps, units
        ranks = units.program_begin.size - 1
        self.cells = np.full(units.cells, NEVER, np.int64)
        self.finish = np.zeros((ranks, RANK_STREAMS), np.int64)
        self.sent = np.full((len(units.edges), units.micros), -1, np.int64)
        self.position = np.zeros(ranks, np.int64)
        self.step = [0] * ranks
        self.times: list[list[int]] = [[] for _ in range(ranks)]
        self.places: list[Ints] = []
        at = 0
        for function in units.kind_function.tolist():
            count = len(maps.matrix(function)) - STREAM_PORTS
            count += len(maps.ports(function))
            self.places.append(units.kind_places[at : at + 2 * count].reshape(-1, 2))
            at += 2 * count

    def go(self) -> ActionTimes:
        """Ask each rank again and again how far it gets."""
        moved = True
        while moved:
            moved = any([self._advance(rank) for rank in range(len(self.step))])
        times = np.array([time for local in self.times for time in local], np.int64)
        return ActionTimes(times, self.finish, self.sent, self.position)

    def _advance(self, rank: int) -> bool:
        units, moved = self.units, False
        first, last = units.program_begin[rank : rank + 2].tolist()
        while first + self.position[rank] < last:
            template, micro = units.programs[first + self.position[rank]].tolist()
            begin, end = units.template_begin[template : template + 2].tolist()
            for step in units.steps[begin + self.step[rank] : end].tolist():
                if not self._do(rank, step, micro):
                    return moved
                self.step[rank] += 1
                moved = True
            self.step[rank] = 0
            self.position[rank] += 1
            moved = True
        return moved

    def _do(self, rank: int, step: list[int], micro: int) -> bool:
        kind, a, b, c, d = step
        streams, edges = self.finish[rank], self.units.edges
        if kind == RUN:
            self._unit(rank, a, b, micro)
        elif kind == COPY:
            self.cells[c + d * micro] = self.cells[a + b * micro]
        elif kind == SEND:
            start = max(streams[d], self.cells[b + c * micro])
            self.sent[a, micro] = start
            streams[d] = checked(start + edges[a, 1:2])[0]
        elif kind == RECV:
            if self.sent[a, micro] < 0:
                return False
            self.cells[b + c * micro] = self.sent[a, micro] + edges[a, 1]
        elif kind == MARK:
            self.cells[b + c * micro] = streams[a]
        elif kind == WAIT:
            streams[a] = max(streams[a], self.cells[b + c * micro])
        return True

    def _unit(self, rank: int, kind: int, base: int, micro: int) -> None:
        function = int(self.units.kind_function[kind])
        count = len(self.maps.ports(function))
        at = base + self.places[kind][:, 0] + self.places[kind][:, 1] * micro
        times = np.concatenate((self.finish[rank, :STREAM_PORTS], self.cells[at[:count]]))
        self.times[rank] += times.tolist()
        ends = times_of(self.maps.matrix(function), times[:, None])[:, 0]
        self.finish[rank, :STREAM_PORTS] = ends[:STREAM_PORTS]
        remaining = self.places[kind][count:, 0] >= 0
        self.cells[at[count:][remaining]] = ends[STREAM_PORTS:][remaining]
