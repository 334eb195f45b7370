# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prepare forked processes, and describe how they end."""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

from tvm_distir.support import ForkSafeLock

_PR_SET_PDEATHSIG = 1


run_turn = ForkSafeLock()
"""Held during a run: the packed functions and the environment belong to a single run at a time."""


def die_with_parent() -> None:
    """Ask the system to kill this process when its parent ends, on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_text(status: int | None) -> str:
    """Return how a process ended, from its exit status (below 0: the signal)."""
    if status is None:
        return "ended"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def ticks_of(process: int) -> int:
    """Return the clock ticks for which a process has computed; 0 when they are not known.

    Fields ``utime`` and ``stime`` of proc_pid_stat(5), which count all threads.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    # The name, field 2, may hold blanks and brackets.
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
