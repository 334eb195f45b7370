# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the steps of each rank: its pipeline actions and the messages between them.

All ranks' steps are parts of a common order in which a message is an event of both its ends. So no
two ranks wait for each other, even where a send waits for its receive.

Stashes go to the host, and come back, between units of their rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tvm_distir.support import lists_by_key

from .offloading import OffloadWindow, absences
from .pipeline_actions import FORWARD, WEIGHT, PipelineAction
from .schedule import Schedule
from .timeline import TimelineEntry, Times, timeline

RUN, SEND, RECV = "run", "send", "recv"
STORE, FETCH = "store", "fetch"


class RankStep(NamedTuple):
    """A step of a rank.

    Attributes
    ----------
    kind : str
        ``run``, ``send``, ``recv``; ``store``: what the unit keeps is in the host's memory from
        here on, and not on the device any more; ``fetch``: it comes back from here on.
    unit : PipelineAction
        The action that is run, or the action of this rank that produces, or needs, the message or
        the stash.
    stage : int
        The stage of the action.
    peer : int
        Stage at the other end of a message; -1 of a run.
    """

    kind: str
    unit: PipelineAction
    stage: int
    peer: int = -1


def programs(schedule: Schedule) -> list[list[RankStep]]:
    """Return the steps of each rank.

    A message goes as soon as its value is made, by the times of phases that take 1 (forward, or
    half a backward) or 2. Neighbors on the same rank need none.
    """
    ranks = schedule.rank_of
    times = Times(1, 1, 1) if schedule.splits_backward else Times(1, 2)
    ran = timeline(schedule.orders, ranks, times)
    readers = {(entry.unit.phase, entry.stage, entry.unit.micro): entry for entry in ran}
    events: list[tuple[float, int, int, TimelineEntry]] = []
    for number, entry in enumerate(ran):
        events.append((entry.start, 1, number, entry))
        if _peer(entry, schedule) >= 0:
            events.append((entry.end, 0, number, entry))
    steps_of: list[list[RankStep]] = [[] for _ in range(schedule.stages)]
    for _, is_run, _, entry in sorted(events, key=lambda event: event[:3]):
        if is_run:
            steps_of[entry.rank].append(RankStep(RUN, entry.unit, entry.stage))
            continue
        peer = _peer(entry, schedule)
        reader = readers[entry.unit.phase, peer, entry.unit.micro]
        steps_of[entry.rank].append(RankStep(SEND, entry.unit, entry.stage, peer))
        steps_of[reader.rank].append(RankStep(RECV, reader.unit, peer, entry.stage))
    if not schedule.offload:
        return steps_of
    return [_with_moves(steps, absences(schedule, rank)) for rank, steps in enumerate(steps_of)]


def _with_moves(steps: Iterable[RankStep], away: Iterable[OffloadWindow]) -> list[RankStep]:
    """Return a rank's steps with those of its stashes: behind the actions they are stored during,
    and before those that they are fetched during.
    """
    windows = list(away)
    behind = lists_by_key((window.stored, window) for window in windows)
    before = lists_by_key((window.fetched, window) for window in windows)
    makers: dict[tuple[int, int], PipelineAction] = {}
    moves: list[RankStep] = []
    position = 0
    for step in steps:
        if step.kind != RUN:
            moves.append(step)
            continue
        if step.unit.phase == FORWARD:
            makers[step.stage, step.unit.micro] = step.unit
        for window in before.get(position, ()):
            moves.append(RankStep(FETCH, makers[window.stage, window.micro], window.stage))
        moves.append(step)
        for window in behind.get(position, ()):
            moves.append(RankStep(STORE, makers[window.stage, window.micro], window.stage))
        position += 1
    return moves


def _peer(entry: TimelineEntry, schedule: Schedule) -> int:
    """Return the stage on another rank that reads the result of an action; -1 if there is none."""
    phase = entry.unit.phase
    if phase == WEIGHT:
        return -1
    peer = entry.stage + (1 if phase == FORWARD else -1)
    inside = 0 <= peer < schedule.stage_count
    return peer if inside and schedule.rank_of[peer] != entry.rank else -1
