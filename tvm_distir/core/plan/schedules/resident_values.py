# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the micro-batches and messages that a rank holds during each pipeline action."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pipeline_actions import BACKWARD, FORWARD, WEIGHT
from .programs import FETCH, RECV, RUN, SEND, STORE, programs
from .schedule import Schedule

Ints = npt.NDArray[np.int64]

_KEPT, _LATER, _ACTIVATIONS, _GRADIENTS, _RESULTS, _GIVEN = range(6)
_IN = {FORWARD: _ACTIVATIONS, BACKWARD: _GRADIENTS}
_OUT = {FORWARD: _RESULTS, BACKWARD: _GIVEN}


@dataclass(frozen=True)
class ResidentValues:
    """The values that a rank holds of a stage at each of its actions, in order of issue.

    Attributes
    ----------
    stage : int
    running : bool array (units,)
        Whether the unit is this stage's.
    summing : bool array (units,)
        Whether a micro-batch is done, so that there are sums.
    kept : int64 array (units,)
        Micro-batches whose forward pass is done and whose backward pass is not, without that of
        the unit, and without those that are in the host's memory.
    later : int64 array
        The values stored between the backward pass of a micro-batch and its gradients of weights,
        that of the action too; 0 where these are not apart.
    activations, gradients : int64 arrays
        Messages that are there for later units.
    results, given : int64 arrays
        Messages, of activations and of their gradients, that are made and have not gone.
    """

    stage: int
    running: npt.NDArray[np.bool_]
    summing: npt.NDArray[np.bool_]
    kept: Ints
    later: Ints
    activations: Ints
    gradients: Ints
    results: Ints
    given: Ints


def holdings(schedule: Schedule) -> list[list[ResidentValues]]:
    """Return the resident values of each stage of each rank."""
    snapshots = []
    for rank, steps in enumerate(programs(schedule)):
        stages = [stage for stage, owner in enumerate(schedule.rank_of) if owner == rank]
        number = {stage: i for i, stage in enumerate(stages)}
        now = np.zeros((len(stages), 6), np.int64)
        rows, running, begun = [], [], []
        done: set[int] = set()
        for step in steps:
            here, phase = now[number[step.stage]], step.unit.phase
            if step.kind == RECV:
                here[_IN[phase]] += 1
            elif step.kind == SEND:
                here[_OUT[phase]] -= 1
            elif step.kind in (STORE, FETCH):
                here[_KEPT] += 1 if step.kind == FETCH else -1
            elif step.kind == RUN:
                behind = {FORWARD: -1, BACKWARD: 1}.get(phase, 0)
                if _neighbor_is_remote(schedule, step.stage, behind):
                    here[_IN[phase]] -= 1
                if phase == BACKWARD:
                    here[_KEPT] -= 1
                    here[_LATER] += schedule.splits_backward
                rows.append(now.copy())
                running.append(step.stage)
                begun.append([stage in done for stage in stages])
                if phase == (WEIGHT if schedule.splits_backward else BACKWARD):
                    done.add(step.stage)
                if phase == FORWARD:
                    here[_KEPT] += 1
                elif phase != BACKWARD:
                    here[_LATER] -= 1
                if _neighbor_is_remote(schedule, step.stage, -behind):
                    here[_OUT[phase]] += 1
        table, ran = np.array(rows, np.int64), np.array(running, np.int64)
        summing = np.array(begun, bool)
        columns = [(stage, ran == stage, summing[:, i]) for i, stage in enumerate(stages)]
        snapshots.append([ResidentValues(*x, *table[:, i].T) for i, x in enumerate(columns)])
    return snapshots


def _neighbor_is_remote(schedule: Schedule, stage: int, step: int) -> bool:
    """Return whether a stage has a neighbor on another rank, that many stages on."""
    other = stage + step
    inside = step != 0 and 0 <= other < len(schedule.rank_of)
    return inside and schedule.rank_of[other] != schedule.rank_of[stage]
