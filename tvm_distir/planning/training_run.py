# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Estimate the length of a training run: its tokens, and the failures of its devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_distir.support import UsageError


@dataclass(frozen=True)
class TrainingRun:
    """Training run, whose devices may fail independently at a constant rate.

    A failure loses the work since the last checkpoint.

    Parameters
    ----------
    tokens : float, optional
        The tokens that the run trains on.
    mtbf_hours : float, optional
        The mean time between failures of a device; None: none fails.
    checkpoint_minutes : float, optional
        The time that the steps wait for a checkpoint.
    restart_minutes : float, optional
        The time from a failure to the first step; None: that of a checkpoint.

    Raises
    ------
    UsageError
        DIST0151 where the failures lack a number, DIST0152 for one that is not positive.
    """

    tokens: float | None = None
    mtbf_hours: float | None = None
    checkpoint_minutes: float | None = None
    restart_minutes: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None or (isinstance(value, int | float) and 0 < value < math.inf):
                continue
            problem = f"{value!r} is not a positive number"
            remedy = "Give a positive number, such as 1e12 tokens."
            raise UsageError("DIST0152", problem, location=name, remedy=remedy)
        stated = [self.mtbf_hours is not None, self.checkpoint_minutes is not None]
        if not all(stated) and (any(stated) or self.restart_minutes is not None):
            problem = "failures need the time between them and that of a checkpoint"
            remedy = "Give --mtbf-hours and --checkpoint-minutes (mtbf_hours, checkpoint_minutes)."
            raise UsageError("DIST0151", problem, location="mtbf_hours", remedy=remedy)

    def failure_interval_s(self, devices: int) -> float | None:
        """Return the mean time between failures of any device in seconds."""
        return None if self.mtbf_hours is None else self.mtbf_hours * 3600 / devices

    def checkpoint_interval_s(self, devices: int) -> float | None:
        """Return the time of steps between checkpoints that takes least time in all.

        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
        2006; its first term is that of J. W. Young, 1974.

        Raises
        ------
        UsageError
            DIST0152 where a checkpoint or a restart takes twice the time between failures or more.
        """
        mean_s = self.failure_interval_s(devices)
        if mean_s is None or self.checkpoint_minutes is None:
            return None
        write_s = self.checkpoint_minutes * 60
        if max(write_s, self._restart_s) >= 2 * mean_s:
            problem = f"of {devices:,} devices one fails every {mean_s:.3g} s, too often to train"
            remedy = "Give the mean time of a single device, shorter checkpoints or restarts."
            raise UsageError("DIST0152", problem, location="mtbf_hours", remedy=remedy)
        ratio = write_s / (2 * mean_s)
        return math.sqrt(2 * write_s * mean_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s

    def goodput(self, devices: int) -> float | None:
        """Return the share of the time of a run in which steps advance it.

        It is the inverse of the expected time of an interval with its checkpoint, over that of its
        steps, with failures at all times (Daly 2006, complete model).
        """
        mean_s, interval_s = self.failure_interval_s(devices), self.checkpoint_interval_s(devices)
        if mean_s is None or interval_s is None or self.checkpoint_minutes is None:
            return None
        attempt_s = interval_s + self.checkpoint_minutes * 60
        expected_s = mean_s * math.exp(self._restart_s / mean_s) * math.expm1(attempt_s / mean_s)
        return interval_s / expected_s

    @property
    def _restart_s(self) -> float:
        return 60 * (self.restart_minutes or self.checkpoint_minutes or 0)
