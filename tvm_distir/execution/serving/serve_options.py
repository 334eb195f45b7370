# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the options of a run of a deployed folder in a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .rate_schedule import RateSchedule


@dataclass(frozen=True)
class ServeOptions:
    """Options of a run of a deployed folder in a job.

    Attributes
    ----------
    inputs : Path or None
        A file of inputs that are the same in every step.
    steps : Path or None
        A file of inputs with a first dim of steps, of which each step takes one.
    repeat : int
        How often the steps, or the single run, are repeated.
    checkpoints : Path or None
        The folder for checkpoints.
    every : int
        The number of steps between checkpoints; there is one after the last step too.
    resume : Path or None
        A checkpoint, or a folder of checkpoints, from which the state is read.
    sharded : bool
        Whether outputs stay on their ranks.
    trace : Path or None
        The JSON file for the kernels and collectives of all steps.
    losses : Path or None
        The CSV file to which the outputs of one number are appended after each step.
    rate : RateSchedule or None
        The schedule of the input ``rate``.
    requests : Path or None
        A file of :class:`.PromptFile`, whose requests get tokens by a serving step.
    """

    inputs: Path | None = None
    steps: Path | None = None
    repeat: int = 1
    checkpoints: Path | None = None
    every: int = 0
    resume: Path | None = None
    sharded: bool = False
    trace: Path | None = None
    losses: Path | None = None
    rate: RateSchedule | None = None
    requests: Path | None = None
