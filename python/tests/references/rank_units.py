# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run units on ranks in plain Python, with max-plus products in NumPy."""

from __future__ import annotations

import numpy as np

from tvm_distir.performance.event_loop.function_summaries import (
    LATEST,
    NEVER,
    STREAM_PORTS,
    FunctionSummaries,
    Ints,
)
from tvm_distir.performance.event_loop.rank_programs import RANK_STREAMS, ActionTimes, RankPrograms
from tvm_distir.performance.event_loop.rank_walk import RankWalk


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


class _Run(RankWalk[int]):
    """A run of units: tokens are times."""

    def __init__(self, maps: FunctionSummaries, units: RankPrograms) -> None:
        super().__init__(maps, units, NEVER, 0)
        self.sent = np.full((len(units.edges), units.micros), -1, np.int64)
        self.times: list[list[int]] = [[] for _ in self.streams]

    def go(self) -> ActionTimes:
        """Run all ranks."""
        self.advance()
        times = np.array([time for local in self.times for time in local], np.int64)
        finish = np.array(self.streams, np.int64).reshape(-1, RANK_STREAMS)
        return ActionTimes(times, finish, self.sent, np.array(self.position, np.int64))

    def run(
        self, rank: int, step: int, micro: int, streams: list[int], ports: list[int]
    ) -> tuple[list[int], list[int]]:
        """See :class:`.rank_walk.RankWalk`."""
        kind = int(self.units.steps[step, 1])
        ins = [*streams, *ports]
        self.times[rank] += ins
        matrix = self.maps.matrix(int(self.units.kind_function[kind]))
        ends = times_of(matrix, np.array(ins, np.int64)[:, None])[:, 0].tolist()
        return ends[:STREAM_PORTS], [ends[STREAM_PORTS + r] for r in self.stored[kind]]

    def send(self, rank: int, edge: int, micro: int, stream: int, value: int) -> tuple[int, int]:
        """See :class:`.rank_walk.RankWalk`."""
        self.sent[edge, micro] = max(stream, value)
        end = int(checked(self.sent[edge, micro : micro + 1] + self.units.edges[edge, 1])[0])
        return end, end

    def join(self, rank: int, stream: int, first: int, second: int) -> int:
        """See :class:`.rank_walk.RankWalk`."""
        return max(first, second)
