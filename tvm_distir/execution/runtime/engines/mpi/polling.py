# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Poll with growing pauses."""

from __future__ import annotations

import os
import time

_SPINS = 200
_PAUSES_S = (20e-6, 1e-3)


class Deadline:
    """Polls with growing pauses until a time.

    Parameters
    ----------
    timeout_s : float
    """

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s
        self._turns = 0

    @property
    def is_over(self) -> bool:
        """Return whether the pause is over."""
        return time.monotonic() > self._end

    def pause(self) -> None:
        """Let others run: at first only the processor is offered, later this process sleeps."""
        self._turns += 1
        if self._turns < _SPINS:
            os.sched_yield()
        else:
            time.sleep(min(_PAUSES_S[0] * (self._turns - _SPINS), _PAUSES_S[1]))
