# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the messages between pipeline ranks, and sums over the stages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
        self.rank_of = endpoints.rank_of

    def message(self, step: RankStep) -> None:
        """Send or receive all values of the same kind between two stages."""
        kind = ACTIVATION if step.unit.phase == FORWARD else GRADIENT
        here = self.writer.stages[step.stage].body
        names = here.results if step.kind == SEND else here.params
        for slot in [w for w in names if w.startswith(f"{kind}:")]:
            ends = (step.stage, step.peer) if step.kind == SEND else (step.peer, step.stage)
            placements = self.endpoints.made(ends[0], slot), self.endpoints.read(ends[1], slot)
            title = f"{plain_name(slot.replace(':', '_'))}_{step.unit.micro}"
            value = None
            if step.kind == SEND:
                value = self.writer.made(step.stage, slot, step.unit.micro)
            arrived = self._exchange((slot, step.unit.micro), ends, placements, title, value)
            if step.kind != SEND:
                self.writer.arrive(step.stage, slot, step.unit.micro, arrived)

    def _exchange(
        self,
        key: Hashable,
        ends: tuple[int, int],
        placements: tuple[IoPlacement, IoPlacement],
        title: str,
        value: Expr | None,
    ) -> Var:
        """Emit an end of a message between two stages; the first sends, and has the value."""
        (sent, read), tag = placements, self.endpoints.tag((key, *ends))
        source, target = (self.endpoints.meshes[self.rank_of[stage]] for stage in ends)
        meshes = sent.view(source), read.view(target)
        labels = sent.placement, read.placement
        if self.rank_of[ends[0]] == self.rank:
            call = ops.send(value, *meshes, *labels, sent.shape, tag)
            return self.writer.emit(call, f"{title}_sent")
        call = ops.recv(
            device_mesh=meshes[1],
            peer_mesh=meshes[0],
            placement=labels[1],
            peer_placement=labels[0],
            shape=read.shape,
            dtype=read.dtype,
            tag=tag,
        )
        return self.writer.emit(call, f"{title}_arrived")

    def sum(self, name: str, stages: Sequence[int]) -> None:
        """Sum the terms of all stages in order; the last stage broadcasts the result."""
        writer, term = self.writer, f"{PART}:{name}"
        title, running = f"{plain_name(name)}_total", None
        for before, number in zip((None, *stages), stages, strict=False):
            is_here = self.rank_of[number] == self.rank
            if is_here:
                writer.end(number, [term])
            if before is not None:
                ends = before, number
                placements = self.endpoints.made(before, term), self.endpoints.made(number, term)
                ranks = [self.rank_of[stage] for stage in ends]
                if ranks[0] != ranks[1] and self.rank in ranks:
                    running = self._exchange(term, ends, placements, title, running)
                elif is_here:
                    self.endpoints.agree(number, term, *placements, NEXT_STAGE)
            if is_here:
                value = writer.result(number, term)
                running = value if running is None else writer.sum_of(running, value, title)
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
            if rank != self.rank_of[last] and self.rank in (rank, self.rank_of[last]):
                read = self.endpoints.read(number, total)
                ends, title = (last, number), f"{plain_name(name)}_told"
                received = self._exchange(total, ends, (source_io, read), title, running)
                if rank == self.rank:
                    value, arrived = received, read
        for number in stages:
            if self.rank_of[number] == self.rank:
                read = self.endpoints.read(number, total)
                self.endpoints.agree(number, total, arrived, read, NEXT_STAGE)
                stage = writer.stages[number]
                stage.env[stage.body.params[total]] = value
