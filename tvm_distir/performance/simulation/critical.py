# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Trace the critical path from the end of the step back through its dependencies."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tvm_distir.performance.traces.records import OpRecords, TracedDevices
from tvm_distir.support import lists_by_key

from .device_results import DeviceGroupResult
from .op_records import seconds

WAITING = "waiting"
"""Name of time in which nothing on the path runs: the host, or what no event tells."""

_MOST_OPS = 300_000
"""The number of ops beyond which units of stages are shown instead of their ops."""


@dataclass(frozen=True)
class PathPart:
    """Part of the path: an op of a module in a pass on a stream, how often it occurs, its time."""

    name: str
    stream: str
    count: int
    time_s: float
    module: str = ""
    phase: str = ""


class _Event(NamedTuple):
    lane: int
    stream: str
    name: str
    start: int
    end: int
    flow: Hashable
    module: str = ""
    phase: str = ""


def critical_path(device_groups: Sequence[DeviceGroupResult]) -> tuple[PathPart, ...]:
    """Return the parts of the longest chain of events, the longest part first.

    Everything starts when something ends that it waited for; the path goes back from the last end
    to what ended when each event began, on its device or, for what was received, on the sender's.
    Where several did, the event on the same stream is taken. The times add up to the step's.

    Parameters
    ----------
    device_groups : sequence of DeviceGroupResult
    """
    events = list(_events([lane.traced() for lane in device_groups]))
    if not events:
        return ()
    ending = lists_by_key(((event.lane, event.end), event) for event in events)
    senders = {event.flow: event.lane for event in events if event.stream == "send"}
    by_lane = lists_by_key((event.lane, event.end) for event in events)
    ends = {lane: sorted(set(times)) for lane, times in by_lane.items()}
    totals: dict[tuple[str, ...], list[int]] = {}

    def note(duration: int, *key: str) -> None:
        row = totals.setdefault(key, [0, 0])
        row[0] += 1
        row[1] += duration

    now: _Event | None = max(events, key=lambda event: event.end)
    while now is not None:
        note(now.end - now.start, now.name, now.stream, now.module, now.phase)
        ending[now.lane, now.end].remove(now)
        lane = senders.get(now.flow, now.lane) if now.stream == "recv" else now.lane
        lane_ends, position = ends.get(lane, []), bisect.bisect_right(ends.get(lane, []), now.start)
        while position and not ending[lane, lane_ends[position - 1]]:
            position -= 1
        at = lane_ends[position - 1] if position else 0
        if at < now.start:
            note(now.start - at, WAITING, "", "", "")
        now = _before(ending[lane, at], now.stream) if position else None
    parts = (
        PathPart(name, stream, count, seconds(duration), *where)
        for (name, stream, *where), (count, duration) in totals.items()
    )
    return tuple(sorted(parts, key=lambda part: (-part.time_s, part.name, part.module)))


def _before(ended: Sequence[_Event], stream: str) -> _Event | None:
    """Return the event that ends at a time on a stream, else the first."""
    return next(iter([*[event for event in ended if event.stream == stream], *ended]), None)


def _events(device_groups: Sequence[TracedDevices]) -> Iterator[_Event]:
    """Yield all timed events; units of stages stand for ops where there are too many."""
    sheets = [list(lane.sheets()) for lane in device_groups]
    by_unit = sum(sheet.start.size for lane_sheets in sheets for sheet in lane_sheets) > _MOST_OPS
    for number, (lane, lane_sheets) in enumerate(zip(device_groups, sheets, strict=True)):
        for sheet in lane_sheets:
            yield from _units(number, sheet) if by_unit and sheet.unit else _ops(number, sheet)
        for records in lane.messages():
            stream = records.stream.partition(" ")[0]
            times = zip(records.flows, records.start.tolist(), records.end.tolist(), strict=True)
            for flow, start, end in times:  # a flow that takes no time leads to its sender
                yield _Event(number, stream, "message", start, end, flow)


def _units(number: int, sheet: OpRecords) -> Iterator[_Event]:
    for start, end in sheet.span.tolist():
        if end > start:
            yield _Event(number, "compute", sheet.unit, start, end, None)


def _ops(number: int, sheet: OpRecords) -> Iterator[_Event]:
    modules = [(kind.args.get("module", ""), kind.args.get("pass", "")) for kind in sheet.kinds]
    for starts, ends in zip(sheet.start.tolist(), sheet.end.tolist(), strict=True):
        for kind, module, start, end in zip(sheet.kinds, modules, starts, ends, strict=True):
            if end > start:
                yield _Event(number, kind.stream, kind.name, start, end, None, *module)
