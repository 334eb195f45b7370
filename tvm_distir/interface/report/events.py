# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shorten timelines for a page: adjacent events shorter than a pixel are merged."""

from __future__ import annotations

from collections.abc import Sequence

from .model import ReportEvent, ReportLane

MAX_EVENTS = 8000
MAX_MEMORY_STEPS = 2000


def shorten_events(events: Sequence[ReportEvent], limit: int = MAX_EVENTS) -> list[ReportEvent]:
    """Join short neighbouring events of a stream until at most about ``limit`` are left.

    Time is cut into ``limit // 4`` bins; events shorter than a bin that start in the same
    bin of the same stream and scope become one, named after the longest of them. The sum of
    durations stays exact, and no event longer than a bin changes.

    Parameters
    ----------
    events : sequence of ReportEvent
    limit : int
        Below this number nothing is joined.
    """
    ordered = sorted(events, key=lambda e: (e.start_s, e.stream, e.name))
    if len(ordered) <= limit:
        return ordered
    bin_s = max(e.start_s + e.duration_s for e in ordered) / max(1, limit // 4)
    if bin_s <= 0:
        return ordered[:limit]
    shortened: list[ReportEvent] = []
    bins: dict[tuple[str, int], list[ReportEvent]] = {}
    for event in ordered:
        if event.duration_s >= bin_s:
            shortened.append(event)
        else:
            bins.setdefault((event.stream, int(event.start_s / bin_s)), []).append(event)
    for (stream, _), group in bins.items():
        slowest = max(group, key=lambda e: e.duration_s)
        if len(group) == 1:
            shortened.append(slowest)
            continue
        shortened.append(
            ReportEvent(
                name=f"{slowest.name} and {len(group) - 1} more",
                op=slowest.op,
                title=slowest.title,
                stream=stream,
                start_s=group[0].start_s,
                duration_s=sum(e.duration_s for e in group),
                scope=slowest.scope,
                detail=f"{len(group)} events merged",
            )
        )
    return sorted(shortened, key=lambda e: (e.start_s, e.stream, e.name))


def shorten_memory(
    steps: Sequence[tuple[float, int]], limit: int = MAX_MEMORY_STEPS
) -> list[tuple[float, int]]:
    """Reduce a memory curve to about ``limit`` steps, keeping the highest of each bin.

    The peak of the whole curve therefore stays where it is.
    """
    ordered = sorted(steps, key=lambda step: step[0])
    if len(ordered) <= limit:
        return ordered
    bin_s = ordered[-1][0] / max(1, limit // 2)
    best: dict[int, list[tuple[float, int]]] = {}
    for step in ordered:
        slot = best.setdefault(int(step[0] / bin_s) if bin_s > 0 else 0, [step, step])
        if step[1] > slot[0][1]:
            slot[0] = step
        slot[1] = step
    thin = [step for pair in best.values() for step in sorted(set(pair))]
    return sorted(thin, key=lambda step: step[0])


def lane_data(lane: ReportLane, colours: dict[str, int]) -> dict[str, object]:
    """Return a lane for the page's script: names once, events as rows of integers.

    Parameters
    ----------
    lane : ReportLane
    colours : dict of str to int
        Colour number by op.

    Returns
    -------
    data : dict
        ``events`` rows are ``[start_ns, duration_ns, stream, colour, name, title, scope, detail]``
        (the last four are indices into ``words``); ``memory`` rows are ``[time_ns, bytes]``.
    """
    words: dict[str, int] = {}

    def word(text: str) -> int:
        return words.setdefault(text, len(words))

    events = shorten_events(lane.events)
    rows = [
        [
            round(e.start_s * 1e9),
            max(1, round(e.duration_s * 1e9)),
            0 if e.stream == "compute" else 1,
            colours.get(e.op, -1),
            word(e.name),
            word(e.title or e.op),
            word(e.scope),
            word(e.detail),
        ]
        for e in events
    ]
    return {
        "capacity": lane.capacity_bytes,
        "mesh": lane.mesh,
        "devices": list(lane.devices),
        "words": list(words),
        "events": rows,
        "joined": len(rows) < max(len(lane.events), lane.events_total),
        "total": max(len(lane.events), lane.events_total),
        "memory": [[round(t * 1e9), b] for t, b in shorten_memory(lane.memory)],
    }
