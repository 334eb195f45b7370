# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the actions of a pipeline and their dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from tvm_distir.support import Count, one_of

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
"""Phases. Where a schedule has the third, the second makes gradients of activations alone."""

PHASES = (FORWARD, BACKWARD, WEIGHT)


class PipelineAction(NamedTuple):
    """A phase of a micro-batch on a rank of the pipeline.

    Attributes
    ----------
    phase : str
        ``F``, ``B`` or ``W``.
    micro : int
        The micro-batch, from 0.
    chunk : int
        The number of the stage among those of the rank, from 0.
    """

    phase: Annotated[str, one_of(PHASES)]
    micro: Count
    chunk: Count = 0


Orders = list[list[PipelineAction]]
"""The actions of each rank, in the order in which it runs them."""

Work = tuple[str, int, int]
"""Phase, stage and micro-batch: a unit without its rank."""


def stages_of(ranks: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the stage of each (rank, chunk), from the rank of each stage."""
    stages: dict[tuple[int, int], int] = {}
    chunks: dict[int, int] = {}
    for stage, rank in enumerate(ranks):
        chunk = chunks.get(rank, 0)
        stages[rank, chunk] = stage
        chunks[rank] = chunk + 1
    return stages


def waits_for(work: Work, stages: int) -> list[Work]:
    """Return the dependencies: the stage's earlier phase, and that of its neighbor."""
    phase, stage, micro = work
    if phase == FORWARD:
        return [(FORWARD, stage - 1, micro)] if stage else []
    if phase == WEIGHT:
        return [(BACKWARD, stage, micro)]
    after = [(BACKWARD, stage + 1, micro)] if stage + 1 < stages else []
    return [(FORWARD, stage, micro), *after]
