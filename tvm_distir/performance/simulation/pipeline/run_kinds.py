# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the steps of ranks, and the units that they run."""

from __future__ import annotations

from typing import NamedTuple

from .rank_classes import RankUnit


class RunKind(NamedTuple):
    """Kind of run of a step (``once``: it has no micro-batch)."""

    stage: int
    name: str
    unit: RankUnit
    once: bool


class StepNumbers(NamedTuple):
    """Row of ``RankPrograms.steps``, empty where nothing is to be done, with its run."""

    numbers: tuple[int, ...]
    run: RunKind | None = None
