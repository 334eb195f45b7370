# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the messages between pipeline ranks, and sums over the stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax import Expr, Var

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.plan import (
    ACTIVATION,
    FORWARD,
    GRADIENT,
    PART,
    SEND,
    TOTAL,
    RankStep,
    plain_name,
)

from .exchange_placements import NEXT_STAGE, MessageEndpoints
from .stage_placements import IoPlacement
from .unit_writer import UnitWriter


class RankMessages:
    """Messages of a rank.

    Parameters
    ----------
    endpoints : MessageEndpoints
    rank : int
    writer : UnitWriter
        The writer of the rank's program.
    """

    def __init__(self, endpoints: MessageEndpoints, rank: int, writer: UnitWriter) -> None:
        self.endpoints, self.rank, self.writer = endpoints, rank, writer
        self.rank_of, self.mesh = endpoints.rank_of, endpoints.meshes[rank]

    def message(self, step: RankStep) -> None:
        """Send or receive all values of the same kind between two stages."""
        kind = ACTIVATION if step.unit.phase == FORWARD else GRADIENT
        here = self.writer.stages[step.stage].body
        names = here.results if step.kind == SEND else here.params
        for slot in [w for w in names if w.startswith(f"{kind}:")]:
            ends = (step.stage, step.peer) if step.kind == SEND else (step.peer, step.stage)
            key = (slot, step.unit.micro, *ends)
            source_io = self.endpoints.made(ends[0], slot)
            read = self.endpoints.read(ends[1], slot)
            title = f"{plain_name(slot.replace(':', '_'))}_{step.unit.micro}"
            if step.kind != SEND:
                value = self._recv(key, self.rank_of[step.peer], source_io, read, title)
                self.writer.arrive(step.stage, slot, step.unit.micro, value)
            else:
                value = self.writer.made(step.stage, slot, step.unit.micro)
                self._send(key, self.rank_of[step.peer], source_io, read, value, title)

    def _send(
        self,
        key: Any,
        peer: int,
        source_io: IoPlacement,
        read: IoPlacement,
        value: Expr,
        title: str,
    ) -> None:
        mesh, peer_mesh = source_io.view(self.mesh), read.view(self.endpoints.meshes[peer])
        placements, tag = (source_io.placement, read.placement), self.endpoints.tag(key)
        call = ops.send(value, mesh, peer_mesh, *placements, source_io.shape, tag)
        self.writer.emit(call, f"{title}_sent")

    def _recv(
        self, key: Any, peer: int, source_io: IoPlacement, read: IoPlacement, title: str
    ) -> Var:
        call = ops.recv(
            device_mesh=read.view(self.mesh),
            peer_mesh=source_io.view(self.endpoints.meshes[peer]),
            placement=read.placement,
            peer_placement=source_io.placement,
            shape=read.shape,
            dtype=read.dtype,
            tag=self.endpoints.tag(key),
        )
        return self.writer.emit(call, f"{title}_arrived")

    def sum(self, name: str, stages: Sequence[int]) -> None:
        """Sum the terms of all stages in order; the last stage broadcasts the result."""
        writer, term = self.writer, f"{PART}:{name}"
        title, running = f"{plain_name(name)}_total", None
        for at, number in enumerate(stages):
            rank = self.rank_of[number]
            if rank == self.rank:
                writer.end(number, [term])
                term_value = writer.result(number, term)
                if at:
                    before = stages[at - 1]
                    source_io = self.endpoints.made(before, term)
                    read = self.endpoints.made(number, term)
                    if self.rank_of[before] != rank:
                        key = (term, before, number)
                        running = self._recv(key, self.rank_of[before], source_io, read, title)
                    else:
                        self.endpoints.agree(number, term, source_io, read, NEXT_STAGE)
                    running = writer.sum_of(running, term_value, title)
                else:
                    running = term_value
                after = stages[at + 1] if at + 1 < len(stages) else None
                if after is not None and self.rank_of[after] != rank:
                    source_io = self.endpoints.made(number, term)
                    read = self.endpoints.made(after, term)
                    key = (term, number, after)
                    self._send(key, self.rank_of[after], source_io, read, running, title)
        self._tell(name, stages, running)

    def _tell(self, name: str, stages: Sequence[int], running: Any) -> None:
        """Broadcast the sum to every stage, once per rank."""
        writer, term, total = self.writer, f"{PART}:{name}", f"{TOTAL}:{name}"
        last = stages[-1]
        source_io = self.endpoints.made(last, term)
        firsts: dict[int, int] = {}
        for number in stages:
            firsts.setdefault(self.rank_of[number], number)
        value, arrived = running, source_io  # on the rank of the last stage
        for rank, number in firsts.items():
            if rank == self.rank_of[last]:
                continue
            read = self.endpoints.read(number, total)
            key, title = (total, last, number), f"{plain_name(name)}_told"
            if self.rank_of[last] == self.rank:
                self._send(key, rank, source_io, read, running, title)
            elif rank == self.rank:
                value, arrived = self._recv(key, self.rank_of[last], source_io, read, title), read
        for number in stages:
            if self.rank_of[number] == self.rank:
                read = self.endpoints.read(number, total)
                self.endpoints.agree(number, total, arrived, read, NEXT_STAGE)
                stage = writer.stages[number]
                stage.env[stage.body.params[total]] = value
