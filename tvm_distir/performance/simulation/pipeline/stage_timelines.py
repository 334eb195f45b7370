# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show a pipeline rank as events: an event per unit or message."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_distir.performance.event_loop.function_summaries import Ints
from tvm_distir.performance.program.unit_phases import unit_word
from tvm_distir.performance.simulation.op_records import seconds
from tvm_distir.performance.traces.records import Event, MessageRecords, OpRecords, RecordKind, Task

from .rank_dependencies import RankDependencies
from .runs import ActionRuns, Copies, EdgeMessages, StageRuns


@dataclass(frozen=True)
class StageTimeline:
    """Timeline of the events of a device of a rank.

    Attributes
    ----------
    rank : int
    ran : StageRuns
    runs : list of ActionRuns
        The runs of the rank.
    sent, received : list of EdgeMessages
    copied : list of Copies
    """

    rank: int
    ran: StageRuns
    runs: list[ActionRuns]
    sent: list[EdgeMessages]
    received: list[EdgeMessages]
    copied: list[Copies]

    @staticmethod
    def of(rank: int, ran: StageRuns) -> StageTimeline:
        """Make the timeline from the runs of ranks."""
        rank_of = ran.steps.rank_of
        sent = [message for message in ran.messages if rank_of[message.edge.source[0]] == rank]
        received = [message for message in ran.messages if rank_of[message.edge.target[0]] == rank]
        copied = [copy for copy in ran.copies if rank_of[copy.move.stage] == rank]
        return StageTimeline(rank, ran, list(ran.of(rank)), sent, received, copied)

    @functools.cached_property
    def _often(self) -> Counter[int]:
        """Return the number of calls of each function."""
        often = Counter[int]()
        for run in self.runs:
            often[run.unit.function] += run.micros.size
        return often

    def counts(self) -> Ints:
        """Return how often each row is run."""
        lowering = self.ran.kinds.lowering
        counts = np.zeros(len(lowering.rows), np.int64)
        for function, often in self._often.items():
            counts += often * lowering.counts(function)
        return counts

    def busy(self) -> tuple[int, int, int]:
        """Return the time in which the device computes, communicates, and does both."""
        pairs = [np.stack((moves.start, moves.end), axis=1).ravel() for moves in self._moving()]
        return self.ran.busy(self.rank, np.concatenate([np.zeros(0, np.int64), *pairs]))

    def _moving(self) -> list[EdgeMessages | Copies]:
        return [*self.sent, *self.received, *self.copied]

    @functools.cached_property
    def parts(self) -> list[tuple[ActionRuns, str, Ints, Ints]]:
        """Runs of a unit, its place, and when they start and end on the compute stream."""
        parts = []
        for run in self.runs:
            if self.ran.kinds.lowering.functions[run.unit.function].tasks:
                location = (
                    f"{self.ran.steps.staged.stage_kind_of(run.stage).name}, stage {run.stage}"
                )
                span = self.ran.spans(run)
                parts.append((run, location, span[:, 0], span[:, 1]))
        return parts

    def __len__(self) -> int:
        units = sum(run.micros.size for run, *_ in self.parts)
        return units + sum(moves.micros.size for moves in self._moving())

    def __iter__(self) -> Iterator[Event]:
        device = self.ran.meshes[self.rank].device_ids[0]
        events = list(self._units(device))
        for messages in self.messages():
            spans = zip(messages.names, messages.start.tolist(), messages.end.tolist(), strict=True)
            for kind, (name, start, end) in zip(messages.kinds, spans, strict=True):
                args = {**kind.args, "binding": name}
                times = seconds(start), seconds(end - start)
                events.append(Event(device, kind.stream, kind.name, *times, args))
        yield from sorted(events, key=lambda event: event.start_s)

    def sheets(self) -> Iterator[OpRecords]:
        """Yield the ops of all units."""
        for run, position, first, last in self.parts:
            start, end = self.ran.op_times(run)
            span = np.stack((first, last), axis=1)
            kinds = self.ran.ops(run.unit.function)
            yield OpRecords(
                kinds, start, end, run.order, unit_word(run.name), position, run.micros, span
            )

    def messages(self) -> Iterator[MessageRecords]:
        """Yield the messages of each edge."""
        rank_of = self.ran.steps.rank_of
        for stream, stream_messages in (("send", self.sent), ("recv", self.received)):
            for messages in stream_messages:
                kind = RecordKind(stream, stream, self._facts(messages, stream))
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
            kind = RecordKind(word, word, _copy_facts(copies))
            names = [f"{word} {micro}" for micro in micros]
            flows = [((stage, 0), (stage, 0), "stash", micro) for micro in micros]
            yield MessageRecords(word, [kind] * len(micros), names, copies.start, copies.end, flows)

    def tasks(self) -> list[Task]:
        """Return the ops and messages, with the tasks that they wait for."""
        return RankDependencies(self.ran, self.rank).tasks

    def _facts(self, messages: EdgeMessages, stream: str) -> dict[str, Any]:
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
        for run, position, start, end in self.parts:
            word = unit_word(run.name)
            counts = lowering.counts(run.unit.function).tolist()
            flops = sum(n * row.op.flops for n, row in zip(counts, lowering.rows, strict=True))
            micros = run.micros.tolist()
            for micro, first, last in zip(micros, start.tolist(), end.tolist(), strict=True):
                args = {
                    "op": run.unit.name,
                    "binding": f"{word} {micro}" if micro >= 0 else word,
                    "scope": position,
                    "flops": flops,
                }
                yield Event(device, "compute", word, seconds(first), seconds(last - first), args)


def _message(messages: EdgeMessages, micro: int) -> str:
    """Return the name of a message."""
    return f"{messages.edge.direction} {micro}" if micro >= 0 else messages.edge.direction


def _copy_facts(copies: Copies) -> dict[str, Any]:
    """Return the properties that all copies of a stage in a single direction share."""
    move = copies.move
    return {
        "op": move.kind,
        "payload_bytes": move.bytes,
        "wire_bytes": move.bytes,
        "bound_by": "network",
        "scope": f"stage {move.stage} and the host",
    }
