# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decide which stashes are offloaded to host memory, and during which pipeline actions.

The stash of a forward action is copied to the host while the next action of the rank runs, and is
fetched while the action before its backward action runs. So at least three actions are between the
two, or the stash stays on the device.
"""

from __future__ import annotations

from typing import NamedTuple

from .pipeline_actions import BACKWARD, FORWARD
from .schedule import Schedule

LEAST = 4
"""Least distance from a forward to its backward unit, for a stash to be away during a unit."""


class OffloadWindow(NamedTuple):
    """The interval in which a stash is offloaded to the host.

    Attributes
    ----------
    stage, micro : int
    stored : int
        The unit of the rank, by its place among all of them, during which it is stored.
    fetched : int
        The unit during which it is fetched. During those between it is not on the device.
    """

    stage: int
    micro: int
    stored: int
    fetched: int


def absences(schedule: Schedule, rank: int) -> list[OffloadWindow]:
    """Return the stashes of a rank that go to the host, in the order in which they are stored."""
    chosen = set(schedule.offload)
    stages = [stage for stage, owner in enumerate(schedule.rank_of) if owner == rank]
    if not chosen.intersection(stages):
        return []
    forward_position: dict[tuple[int, int], int] = {}
    windows = []
    for position, (phase, micro, chunk) in enumerate(schedule.orders[rank]):
        stage = stages[chunk]
        if stage not in chosen:
            continue
        if phase == FORWARD:
            forward_position[stage, micro] = position
        elif phase == BACKWARD and position - forward_position[stage, micro] >= LEAST:
            windows.append(
                OffloadWindow(stage, micro, forward_position[stage, micro] + 1, position - 1)
            )
    return sorted(windows, key=lambda window: window.stored)
