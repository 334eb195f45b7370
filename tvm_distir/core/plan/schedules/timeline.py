# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time pipeline actions, with equal phase times on all stages and free messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .pipeline_actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Orders,
    PipelineAction,
    Work,
    stages_of,
    waits_for,
)


class Times(NamedTuple):
    """The times of the phases of a stage, in any unit."""

    forward: float = 1.0
    backward: float = 2.0
    weight: float = 0.0

    def of(self, phase: str) -> float:
        """Return the time of a phase."""
        return {FORWARD: self.forward, BACKWARD: self.backward, WEIGHT: self.weight}[phase]


class TimelineEntry(NamedTuple):
    """A pipeline action and the time at which it ran."""

    start: float
    end: float
    rank: int
    stage: int
    unit: PipelineAction


def timeline(orders: Orders, ranks: Sequence[int], times: Times) -> list[TimelineEntry]:
    """Run orders, each action as soon as its rank is free and its dependencies are done.

    Parameters
    ----------
    orders : list of list of PipelineAction
        The actions of each rank, in order.
    ranks : sequence of int
        Rank of each stage.
    times : Times

    Returns
    -------
    list of TimelineEntry
        The entries by start, each behind all that it waits for. There are fewer than in the orders
        where these wait for each other.
    """
    stage_at, ends = stages_of(ranks), dict[Work, float]()
    position, free = [0] * len(orders), [0.0] * len(orders)
    result: list[TimelineEntry] = []
    moved = True
    while moved:
        moved = False
        for rank, units in enumerate(orders):
            while position[rank] < len(units):
                unit = units[position[rank]]
                stage = stage_at[rank, unit.chunk]
                waited = waits_for((unit.phase, stage, unit.micro), len(ranks))
                if any(work not in ends for work in waited):
                    break
                start = max([free[rank], *(ends[work] for work in waited)])
                end = start + times.of(unit.phase)
                ends[unit.phase, stage, unit.micro] = free[rank] = end
                result.append(TimelineEntry(start, end, rank, stage, unit))
                position[rank] += 1
                moved = True
    return sorted(result, key=lambda ran: ran.start)  # stable: equal starts keep their order
