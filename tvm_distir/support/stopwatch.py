# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measure the stages of a long task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Wall-clock seconds by stage, in the order in which the stages first ended.

    Parameters
    ----------
    on_stage : callable, optional
        Called with the name of each stage when it begins.
    """

    def __init__(self, on_stage: Callable[[str], None] | None = None) -> None:
        self.timings_s: dict[str, float] = {}
        self._on_stage = on_stage

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the body of the ``with`` statement; times of equal names add up."""
        start_s = time.perf_counter()
        if self._on_stage is not None:
            self._on_stage(name)
        try:
            yield
        finally:
            duration_s = time.perf_counter() - start_s
            self.timings_s[name] = self.timings_s.get(name, 0.0) + duration_s
