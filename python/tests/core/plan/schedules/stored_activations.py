# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the activations that ranks of a schedule store."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.core.plan.schedules.pipeline_actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    PipelineAction,
)

_CHANGES = {FORWARD: 1, BACKWARD: -1, WEIGHT: 0}


def in_flight(units: Sequence[PipelineAction]) -> int:
    """Return the maximum number of activations that a rank holds between forward and backward.

    Those of a stage that is one of several of its rank count as much as any other's.
    """
    most = now = 0
    for unit in units:
        now += _CHANGES[unit.phase]
        most = max(most, now)
    return most
