# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show a pipeline rank as events: one per unit or message."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_distir.core import BACKWARD, FORWARD, WEIGHT
from tvm_distir.performance.engine.functions import Ints
from tvm_distir.performance.program.staged import PipelineProgram
from tvm_distir.performance.simulation.device_results import Event, FunctionTime
from tvm_distir.performance.simulation.function_table import (
    ElapsedTimes,
    FunctionTables,
    Table,
    listed,
)
from tvm_distir.performance.simulation.timeline import seconds
from tvm_distir.performance.traces.records import Kind, MessageRecords, OpRecords, Task

from .dependencies import RankDependencies
from .runs import Copies, Messages, Runs, StageRuns

WORDS = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight"}
"""What the phases of a schedule are called in events."""


@dataclass(frozen=True)
class StageTimeline:
    """Timeline of the events of a device of a rank.

    Attributes
    ----------
    staged : PipelineProgram
    rank : int
    ran : StageRuns
    runs : list of Runs
        Of the rank.
    sent, received : list of Messages
    copied : list of Copies
    """

    staged: PipelineProgram
    rank: int
    ran: StageRuns
    runs: list[Runs]
    sent: list[Messages]
    received: list[Messages]
    copied: list[Copies]

    @staticmethod
    def of(staged: PipelineProgram, rank: int, ran: StageRuns) -> StageTimeline:
        """Make the timeline from the runs of ranks."""
        rank_of = staged.schedule.rank_of
        sent = [message for message in ran.messages if rank_of[message.edge.source[0]] == rank]
        received = [message for message in ran.messages if rank_of[message.edge.target[0]] == rank]
        copied = [copy for copy in ran.copies if rank_of[copy.move.stage] == rank]
        return StageTimeline(staged, rank, ran, list(ran.of(rank)), sent, received, copied)

    def talking(self) -> Ints:
        """Return the starts and ends of messages and copies, (2 n,)."""
        moved = [(moves.start, moves.end) for moves in self._moving()]
        return np.concatenate(
            [np.zeros(0, np.int64), *(np.stack(pair, axis=1).ravel() for pair in moved)]
        )

    def _moving(self) -> list[Messages | Copies]:
        return [*self.sent, *self.received, *self.copied]

    @functools.cached_property
    def parts(self) -> list[tuple[Runs, str, Ints, Ints]]:
        """Runs of a unit, its place, and when they start and end on the compute stream."""
        parts = []
        for run in self.runs:
            if self.ran.kinds.lowering.functions[run.unit.function].tasks:
                place = f"{self.staged.role_of(run.stage).name}, stage {run.stage}"
                span = self.ran.spans(run)
                parts.append((run, place, span[:, 0], span[:, 1]))
        return parts

    def __len__(self) -> int:
        units = sum(run.micros.size for run, *_ in self.parts)
        return units + sum(moves.micros.size for moves in self._moving())

    def __iter__(self) -> Iterator[Event]:
        device = self.ran.meshes[self.rank].device_ids[0]
        events = [*self._units(device), *self._messages(device), *self._copies(device)]
        yield from sorted(events, key=lambda event: event.start_s)

    def sheets(self) -> Iterator[OpRecords]:
        """Yield the ops of all units."""
        for run, place, first, last in self.parts:
            start, end = self.ran.op_times(run)
            span = np.stack((first, last), axis=1)
            kinds = self.ran.ops(run.unit.function)
            yield OpRecords(kinds, start, end, run.order, _word(run), place, run.micros, span)

    def wires(self) -> Iterator[MessageRecords]:
        """Yield the messages of each edge."""
        rank_of = self.staged.schedule.rank_of
        for stream, stream_messages in (("send", self.sent), ("recv", self.received)):
            for messages in stream_messages:
                kind = Kind(stream, stream, self._facts(messages, stream))
                peer = "" if stream == "send" else f" from rank {rank_of[messages.edge.source[0]]}"
                micros, edge = messages.micros.tolist(), messages.edge
                names = [_message(messages, micro) for micro in micros]
                flows = [(edge.source, edge.target, edge.direction, micro) for micro in micros]
                count = len(micros)
                yield MessageRecords(
                    stream + peer, [kind] * count, names, messages.start, messages.end, flows
                )
        for copies in self.copied:
            word, stage = copies.move.kind, copies.move.stage
            micros = copies.micros.tolist()
            kind = Kind(word, word, _copy_facts(copies))
            names = [f"{word} {micro}" for micro in micros]
            flows = [((stage, 0), (stage, 0), "stash", micro) for micro in micros]
            yield MessageRecords(word, [kind] * len(micros), names, copies.start, copies.end, flows)

    def tasks(self) -> list[Task]:
        """Return the ops and messages and what they wait for."""
        ends = (self.sent, self.received, self.copied)
        return RankDependencies(self.staged, self.rank, self.ran, self.runs, *ends).tasks

    def _facts(self, messages: Messages, stream: str) -> dict[str, Any]:
        """Return the properties that all messages of an edge share."""
        edge, side = messages.edge, stream == "recv"
        return {
            "op": f"relax.dist.{stream}",
            "payload_bytes": edge.bytes[side],
            "wire_bytes": edge.wire_bytes[side],
            "bound_by": "network",
            "scope": f"stage {edge.source[0]} to stage {edge.target[0]}",
        }

    def _units(self, device: int) -> Iterator[Event]:
        lowering = self.ran.kinds.lowering
        for run, place, start, end in self.parts:
            word = _word(run)
            counts = lowering.counts(run.unit.function).tolist()
            flops = sum(n * row.op.flops for n, row in zip(counts, lowering.rows, strict=True))
            micros = run.micros.tolist()
            for micro, first, last in zip(micros, start.tolist(), end.tolist(), strict=True):
                args = {
                    "op": run.unit.name,
                    "binding": f"{word} {micro}" if micro >= 0 else word,
                    "scope": place,
                    "flops": flops,
                }
                yield Event(device, "compute", word, seconds(first), seconds(last - first), args)

    def _messages(self, device: int) -> Iterator[Event]:
        for stream, stream_messages in (("send", self.sent), ("recv", self.received)):
            for messages in stream_messages:
                facts = self._facts(messages, stream)
                columns = (messages.micros.tolist(), messages.start.tolist(), messages.end.tolist())
                for micro, start, end in zip(*columns, strict=True):
                    args = {**facts, "binding": _message(messages, micro)}
                    yield Event(device, stream, stream, seconds(start), seconds(end - start), args)

    def _copies(self, device: int) -> Iterator[Event]:
        for copies in self.copied:
            facts, word = _copy_facts(copies), copies.move.kind
            columns = (copies.micros.tolist(), copies.start.tolist(), copies.end.tolist())
            for micro, start, end in zip(*columns, strict=True):
                args = {**facts, "binding": f"{word} {micro}"}
                yield Event(device, word, word, seconds(start), seconds(end - start), args)


def _word(run: Runs) -> str:
    """Return the name of a unit."""
    return WORDS.get(run.name.rstrip("+"), run.name.partition(":")[0])


def _message(messages: Messages, micro: int) -> str:
    """Return the name of a message."""
    return f"{messages.edge.direction} {micro}" if micro >= 0 else messages.edge.direction


def _copy_facts(copies: Copies) -> dict[str, Any]:
    """Return the properties that all copies of a stage in one direction share."""
    move = copies.move
    return {
        "op": move.kind,
        "payload_bytes": move.bytes,
        "wire_bytes": move.bytes,
        "bound_by": "network",
        "scope": f"stage {move.stage} and the host",
    }


def function_times(
    root: str, runs: Sequence[Runs], tables: FunctionTables
) -> tuple[FunctionTime, ...]:
    """Return the functions of a rank: all of it, the phases, what they call."""
    elapsed: Table = {root: ElapsedTimes(0, 1)}
    for run in runs:
        table = dict(tables.of(run.unit.function))
        whole = table.pop(run.unit.name)
        count = run.micros.size
        elapsed[root] = elapsed[root].plus(
            ElapsedTimes(0, 0, whole.compute_ps, whole.other_ps, whole.flops), count
        )
        for name, spent in table.items():
            elapsed[name] = elapsed.get(name, ElapsedTimes(spent.depth, 0)).plus(spent, count)
    return listed(elapsed)
