# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a lane shows of a rank of a pipeline: a unit, or a message, is one event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..program import Program, Staged
from ..schedules import BACKWARD, FORWARD, WEIGHT
from .costs import COMPUTE, OpRow
from .flat import CallRow
from .lanes import Event, FunctionTime
from .rank_state import RankState, Runs
from .timeline import function_table, listed, seconds

Ints = npt.NDArray[np.int64]

WORDS = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight"}
"""What the phases of a schedule are called in events."""


@dataclass(frozen=True)
class StageTimeline:
    """The events of one device.

    Attributes
    ----------
    device : int
    parts : list of (Runs, str, int64 array, int64 array)
        Runs of a unit, its place, and when they start and end on the compute stream.
    messages : list of (str, str, int, int, dict)
        Stream, binding, start, end and facts.
    """

    device: int
    parts: list[tuple[Runs, str, Ints, Ints]]
    messages: list[tuple[str, str, int, int, dict[str, Any]]]

    @staticmethod
    def of(
        program: Program, staged: Staged, rank: int, state: RankState, starts: Sequence[Ints]
    ) -> StageTimeline:
        """From what a rank ran; ``starts`` are those of the tasks of each of its runs."""
        parts = []
        for one, start in zip(state.runs.values(), starts, strict=True):
            summary = one.unit.summary
            tasks = np.flatnonzero(summary.stream == COMPUTE)
            tasks = tasks if tasks.size else np.arange(summary.stream.size)
            if tasks.size:
                end = start[:, tasks] + summary.duration[tasks]
                place = f"{staged.role_of(one.stage).name}, stage {one.stage}"
                parts.append((one, place, start[:, tasks].min(axis=1), end.max(axis=1)))
        messages = []
        for stream, found in (("send", state.sent), ("recv", state.received)):
            side = stream == "recv"
            for message in found:
                edge = message.edge
                facts = {
                    "payload_bytes": edge.bytes[side],
                    "wire_bytes": edge.wire_bytes[side],
                    "bound_by": "network",
                    "scope": f"stage {edge.source[0]} to stage {edge.target[0]}",
                }
                name = f"{edge.direction} {message.micro}" if message.micro >= 0 else edge.direction
                messages.append((stream, name, message.start, message.end, facts))
        return StageTimeline(program.meshes[rank].device_ids[0], parts, messages)

    def __len__(self) -> int:
        return len(self.messages) + sum(len(one.micros) for one, *_ in self.parts)

    def __iter__(self) -> Iterator[Event]:
        found = [*self._units(), *self._messages()]
        yield from sorted(found, key=lambda event: event.start_s)

    def _units(self) -> Iterator[Event]:
        for one, place, start, end in self.parts:
            word = WORDS.get(one.name.rstrip("+"), one.name.partition(":")[0])
            flops = one.unit.summary.flops
            for micro, first, last in zip(one.micros, start.tolist(), end.tolist(), strict=True):
                args = {
                    "op": one.unit.name,
                    "binding": f"{word} {micro}" if micro >= 0 else word,
                    "scope": place,
                    "flops": flops,
                }
                yield Event(
                    self.device, "compute", word, seconds(first), seconds(last - first), args
                )

    def _messages(self) -> Iterator[Event]:
        for stream, binding, start, end, facts in self.messages:
            args = {"op": f"relax.dist.{stream}", "binding": binding, **facts}
            yield Event(self.device, stream, stream, seconds(start), seconds(end - start), args)


def function_times(
    root: str, runs: Sequence[Runs], rows: Sequence[OpRow], calls: Sequence[CallRow]
) -> tuple[FunctionTime, ...]:
    """Functions of a rank: all of it, the phases, what they call."""
    whole: list[Any] = [0, 1, 0, 0, 0]
    found: dict[str, list[Any]] = {root: whole}
    for one in runs:
        summary, count = one.unit.summary, len(one.micros)
        table = function_table(summary.flat, rows, calls, one.unit.name, summary.duration)
        for name, (depth, times, *sums) in table.items():
            entry = whole
            if name != one.unit.name:
                entry = found.setdefault(name, [depth, 0, 0, 0, 0])
                entry[1] += times * count
            for i, value in enumerate(sums):
                entry[2 + i] += value * count
    return listed(found)
