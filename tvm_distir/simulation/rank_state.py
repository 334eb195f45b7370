# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A rank of a pipeline while it runs: what was run, sent and received, and what is at hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..program import Edge
from .stage_kinds import RankUnit

Ints = npt.NDArray[np.int64]


@dataclass
class Runs:
    """All runs of a unit of a stage on its rank.

    Attributes
    ----------
    unit : RankUnit
    stage : int
    name : str
    micros : list of int
        Micro-batch of each run; -1 for what is done once.
    times : list of list of int
        Of the ports.
    inputs : list of int64 array
        Instances that the parameters are; -1: there all the time.
    first : list of int
        Instance of the first of the kept results.
    starts : list of int64 array
        Of the tasks, where each run was scheduled by itself.
    """

    unit: RankUnit
    stage: int
    name: str
    micros: list[int] = field(default_factory=list)
    times: list[list[int]] = field(default_factory=list)
    inputs: list[Ints] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    starts: list[Ints] = field(default_factory=list)

    def all_starts(self) -> Ints:
        """When each task of each run starts, (runs, tasks)."""
        if self.starts:
            return np.stack(self.starts)
        return self.unit.summary.starts(np.array(self.times, np.int64))


@dataclass(frozen=True)
class Message:
    """An end of a message on a rank. ``instance`` is what is sent, or arrives."""

    edge: Edge
    micro: int
    instance: int
    start: int
    end: int


@dataclass
class RankState:
    """A rank of the pipeline while it runs.

    Attributes
    ----------
    streams : list of int
        When compute, communication and sends are free.
    instances : int
        Number of tensors made so far that units hand to each other.
    ready : dict of int to int
        When those are there whose time matters.
    once : dict of int to int64 array
        By stage: instances in the slots.
    micros : dict of (int, int) to int64 array
        By stage and micro-batch.
    runs : dict of (int, str) to Runs
        By stage and unit, in the order of the first run.
    sent, received : list of Message
    """

    streams: list[int] = field(default_factory=lambda: [0, 0, 0])
    instances: int = 0
    ready: dict[int, int] = field(default_factory=dict)
    once: dict[int, Ints] = field(default_factory=dict)
    micros: dict[tuple[int, int], Ints] = field(default_factory=dict)
    runs: dict[tuple[int, str], Runs] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
