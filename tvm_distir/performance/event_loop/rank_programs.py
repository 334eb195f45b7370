# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent units of work on ranks, and messages between them, as arrays.

Values that units pass to each other are in *cells*: a slot of a stage has a cell per micro-batch,
in order, followed by a cell for a value that exists once. A *place* is a cell and a stride: for
micro-batch i it is the cell ``cell + stride * i``. The first cells are for values that are
available all along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

RUN, COPY, SEND, RECV, MARK, WAIT = range(6)
"""Steps: run a kind of unit, its places counted from a cell; copy a place to another; send a
message from a place; take a message into a place, for which a rank waits until it was sent; put
into a place when a stream is free; keep a stream from being free before what a place says."""

RANK_STREAMS = 6
"""Streams of a rank: compute, communication, host, sends, stores, fetches."""

SEND_STREAM, STORE_STREAM, FETCH_STREAM = 3, 4, 5
"""The streams that messages, and stashes on their way to the host's memory and back, occupy."""


@dataclass(frozen=True)
class RankPrograms:
    """Programs that the ranks run.

    Attributes
    ----------
    kind_function : int64 array (kinds,)
        Function of each kind of unit.
    kind_positions : int64 array
        The places of the parameters of each kind's function, then of its results; the cell is -1
        for a result that is not stored, and for a parameter that is not a port.
    steps : int64 array (steps, 5)
        Kind of step, and: number of the kind of unit, first cell; place, place; edge, place, and
        of a send the stream that it occupies; stream, place.
    template_begin : int64 array (templates + 1,)
        Template t is ``steps[template_begin[t] : template_begin[t + 1]]``.
    program_begin : int64 array (ranks + 1,)
        Rank r runs ``programs[program_begin[r] : program_begin[r + 1]]`` in turn.
    programs : int64 array (n, 2)
        Template, and micro-batch.
    edges : int64 array (edges, 2)
        Rank that takes the messages, and their duration.
    cells : int
    micros : int
        Cells of a slot: micro-batches and 1.
    """

    kind_function: Ints
    kind_positions: Ints
    steps: Ints
    template_begin: Ints
    program_begin: Ints
    programs: Ints
    edges: Ints
    cells: int
    micros: int

    def arrays(self) -> tuple[Ints | int, ...]:
        """Return the fields in order, each array in a single dim."""
        return (
            self.kind_function,
            self.kind_positions,
            np.ascontiguousarray(self.steps).ravel(),
            self.template_begin,
            self.program_begin,
            np.ascontiguousarray(self.programs).ravel(),
            np.ascontiguousarray(self.edges).ravel(),
            self.cells,
            self.micros,
        )

    def runs(self) -> tuple[Ints, Ints, Ints]:
        """Return all runs, those of each rank in turn.

        Returns
        -------
        program, step : int64 arrays (runs,)
            Row of ``programs``, row of ``steps``.
        begin : int64 array (ranks + 1,)
            The beginning of the runs of each rank, and the end of the last.
        """
        is_run = self.steps[:, 0] == RUN
        before = np.concatenate(([0], np.cumsum(is_run)))
        first, last = before[self.template_begin[:-1]], before[self.template_begin[1:]]
        counts = (last - first)[self.programs[:, 0]]
        ends = np.cumsum(counts)
        program = np.repeat(np.arange(counts.size), counts)
        within = np.arange(program.size) - np.repeat(ends - counts, counts)
        step = np.flatnonzero(is_run)[first[self.programs[program, 0]] + within]
        return program, step, np.concatenate(([0], ends))[self.program_begin]


@dataclass(frozen=True)
class ActionTimes:
    """Times of the actions of a run.

    Attributes
    ----------
    times : int64 array
        The times of the ports of each run, rank by rank.
    finish : int64 array (ranks, 6)
        The times at which the streams of each rank are free: compute, communication, host, sends,
        stores, fetches.
    sent : int64 array (edges, micros)
        Start of each message, -1 where there is none.
    position : int64 array (ranks,)
        The number of steps of its program that each rank ended; fewer where ranks wait for each
        other.
    """

    times: Ints
    finish: Ints
    sent: Ints
    position: Ints
