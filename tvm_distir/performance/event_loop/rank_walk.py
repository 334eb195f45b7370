# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Walk the programs of all ranks in the order in which they can proceed."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Generic, TypeVar

from .function_summaries import STREAM_PORTS, FunctionSummaries
from .rank_programs import COPY, MARK, RANK_STREAMS, RECV, RUN, SEND, WAIT, RankPrograms

Token = TypeVar("Token")


class RankWalk(abc.ABC, Generic[Token]):
    """Walk of the programs of ranks; subclasses say what a run and a message make of tokens.

    A token stands for the time at which a stream is free, or a value is there.

    Parameters
    ----------
    maps : FunctionSummaries
        The functions of the units, whose ports and results decide what is read and written.
    units : RankPrograms
    always, zero : Token
        The tokens of what is there all along, and of time 0.
    every_input : bool
        Whether units read all of their parameters, also those that are no ports.

    Attributes
    ----------
    streams : list of list of Token
        The streams of each rank, :data:`.rank_programs.RANK_STREAMS`.
    cells : list of Token
    arrived : dict of (int, int) to Token
        The arrival of each message, by edge and micro-batch.
    position : list of int
        The number of templates that each rank has ended.
    stored : list of list of int
        The results of each kind of unit that have a cell.
    """

    def __init__(
        self,
        maps: FunctionSummaries,
        units: RankPrograms,
        always: Token,
        zero: Token,
        every_input: bool = False,
    ) -> None:
        self.maps, self.units = maps, units
        ranks = units.program_begin.size - 1
        self.streams = [[zero] * RANK_STREAMS for _ in range(ranks)]
        self.cells = [always] * units.cells
        self.arrived: dict[tuple[int, int], Token] = {}
        self.position = [0] * ranks
        self._step = [0] * ranks
        self.stored: list[list[int]] = []
        self._reads: list[list[list[int]]] = []
        self._writes: list[list[list[int]]] = []
        at = 0
        for function in units.kind_function.tolist():
            params = len(maps.independent_inputs(function))
            results = len(maps.result_sources(function))
            positions = units.kind_positions[at : at + 2 * (params + results)].reshape(-1, 2)
            at += 2 * (params + results)
            written = positions[params:]
            self.stored.append([r for r in range(results) if written[r, 0] >= 0])
            ports = list(range(params)) if every_input else maps.ports(function)
            self._reads.append(positions[ports].tolist())
            self._writes.append(written[self.stored[-1]].tolist())

    @abc.abstractmethod
    def run(
        self, rank: int, step: int, micro: int, streams: list[Token], ports: list[Token]
    ) -> tuple[Sequence[Token], Sequence[Token]]:
        """Run a unit.

        Parameters
        ----------
        rank : int
        step : int
            The row of ``units.steps`` that runs it.
        micro : int
        streams, ports : list of Token
            Its streams: compute, communication and host; and its other ports.

        Returns
        -------
        streams, results : sequence of Token
            The streams behind it, and the results in :attr:`stored`.
        """

    @abc.abstractmethod
    def send(
        self, rank: int, edge: int, micro: int, stream: Token, value: Token
    ) -> tuple[Token, Token]:
        """Send a message; return when its stream is free again, and when it has arrived."""

    def receive(self, rank: int, edge: int, micro: int) -> Token | None:
        """Return the arrival of a message; None before it was sent."""
        return self.arrived.get((edge, micro))

    @abc.abstractmethod
    def join(self, rank: int, stream: int, first: Token, second: Token) -> Token:
        """Let a stream, which is free at the first time, wait for the second."""

    def advance(self, ranks: Sequence[int] | None = None) -> None:
        """Advance ranks, or all of them, until none can proceed."""
        units, moved = self.units, True
        begin, program = units.template_begin.tolist(), units.programs.tolist()
        steps, first = units.steps.tolist(), units.program_begin.tolist()
        while moved:
            moved = False
            for rank in range(len(self.position)) if ranks is None else ranks:
                position = self.position[rank]
                while first[rank] + position < first[rank + 1]:
                    template, micro = program[first[rank] + position]
                    at = begin[template] + self._step[rank]
                    if at == begin[template + 1]:
                        position, self._step[rank] = position + 1, 0
                        continue
                    if not self._do(rank, at, steps[at], micro):
                        break
                    self._step[rank] += 1
                    moved = True
                self.position[rank] = position

    def _do(self, rank: int, at: int, step: list[int], micro: int) -> bool:
        """Execute a step and return whether it was possible."""
        kind, a, b, c, d = step
        streams, cells = self.streams[rank], self.cells
        if kind == RUN:
            ports = [cells[b + position + stride * micro] for position, stride in self._reads[a]]
            ends, results = self.run(rank, at, micro, streams[:STREAM_PORTS], ports)
            streams[:STREAM_PORTS] = ends
            for (position, stride), token in zip(self._writes[a], results, strict=True):
                cells[b + position + stride * micro] = token
        elif kind == COPY:
            cells[c + d * micro] = cells[a + b * micro]
        elif kind == SEND:
            value = cells[b + c * micro]
            streams[d], self.arrived[a, micro] = self.send(rank, a, micro, streams[d], value)
        elif kind == RECV:
            message = self.receive(rank, a, micro)
            if message is None:
                return False
            cells[b + c * micro] = message
        elif kind == MARK:
            cells[b + c * micro] = streams[a]
        elif kind == WAIT:
            streams[a] = self.join(rank, a, streams[a], cells[b + c * micro])
        return True
