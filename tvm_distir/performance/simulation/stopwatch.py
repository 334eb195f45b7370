# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measure the stages of the simulation itself."""

from __future__ import annotations

import time


class StageTimes:
    """Stopwatch of consecutive stages.

    Attributes
    ----------
    times_s : dict of str to float
        Wall-clock seconds by stage.
    """

    def __init__(self) -> None:
        self.times_s: dict[str, float] = {}
        self._last_s = time.perf_counter()

    def end(self, stage: str) -> None:
        """End a stage; the next begins."""
        now_s = time.perf_counter()
        self.times_s[stage], self._last_s = now_s - self._last_s, now_s
