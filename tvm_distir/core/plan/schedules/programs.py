# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What each rank does: its units, and the messages between them.

All ranks' steps are parts of one order in which a message is one event of both its ends. So no two
ranks wait for each other, also where a send waits for its receive.

Stashes go to the host, and come back, between units of their rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .offloading import OffloadWindow, absences
from .schedule import Schedule
from .timeline import TimelineEntry, Times, timeline
from .units import FORWARD, WEIGHT, PipelineAction

RUN, SEND, RECV = "run", "send", "recv"
STORE, FETCH = "store", "fetch"


class Step(NamedTuple):
    """One thing that a rank does.

    Attributes
    ----------
    kind : str
        ``run``, ``send``, ``recv``; ``store``: what the unit keeps is in the host's memory from
        here on, and not on the device any more; ``fetch``: it comes back from here on.
    unit : PipelineAction
        What is run, or the unit of this rank that makes, or needs, the message or the stash.
    stage : int
        Of the unit.
    peer : int
        Stage at the other end of a message; -1 of a run.
    """

    kind: str
    unit: PipelineAction
    stage: int
    peer: int = -1


def programs(schedule: Schedule) -> list[list[Step]]:
    """Return the steps of each rank.

    A message goes as soon as its value is made, by the times of phases that take 1 (forward, or
    half a backward) or 2. Neighbours on one rank need none.
    """
    ranks = schedule.rank_of
    times = Times(1, 1, 1) if schedule.splits_backward else Times(1, 2)
    ran = timeline(schedule.orders, ranks, times)
    readers = {(one.unit.phase, one.stage, one.unit.micro): one for one in ran}
    events: list[tuple[float, int, int, TimelineEntry]] = []
    for number, one in enumerate(ran):
        events.append((one.start, 1, number, one))
        if _peer(one, schedule) >= 0:
            events.append((one.end, 0, number, one))
    found: list[list[Step]] = [[] for _ in range(schedule.stages)]
    for _, is_run, _, one in sorted(events, key=lambda event: event[:3]):
        if is_run:
            found[one.rank].append(Step(RUN, one.unit, one.stage))
            continue
        peer = _peer(one, schedule)
        reader = readers[one.unit.phase, peer, one.unit.micro]
        found[one.rank].append(Step(SEND, one.unit, one.stage, peer))
        found[reader.rank].append(Step(RECV, reader.unit, peer, one.stage))
    if not schedule.offload:
        return found
    return [_with_moves(steps, absences(schedule, rank)) for rank, steps in enumerate(found)]


def _with_moves(steps: Iterable[Step], away: Iterable[OffloadWindow]) -> list[Step]:
    """A rank's steps with those of its stashes: behind the units that they are stored during,
    and before those that they are fetched during.
    """
    behind: dict[int, list[OffloadWindow]] = {}
    before: dict[int, list[OffloadWindow]] = {}
    for one in away:
        behind.setdefault(one.stored, []).append(one)
        before.setdefault(one.fetched, []).append(one)
    makers: dict[tuple[int, int], PipelineAction] = {}
    moves: list[Step] = []
    place = 0
    for step in steps:
        if step.kind != RUN:
            moves.append(step)
            continue
        if step.unit.phase == FORWARD:
            makers[step.stage, step.unit.micro] = step.unit
        for one in before.get(place, ()):
            moves.append(Step(FETCH, makers[one.stage, one.micro], one.stage))
        moves.append(step)
        for one in behind.get(place, ()):
            moves.append(Step(STORE, makers[one.stage, one.micro], one.stage))
        place += 1
    return moves


def _peer(one: TimelineEntry, schedule: Schedule) -> int:
    """Stage on another rank that reads what a unit makes; -1 where there is none."""
    phase = one.unit.phase
    if phase == WEIGHT:
        return -1
    peer = one.stage + (1 if phase == FORWARD else -1)
    inside = 0 <= peer < schedule.stage_count
    return peer if inside and schedule.rank_of[peer] != one.rank else -1
