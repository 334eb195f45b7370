# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wait for the end of ranks for a limited time, and raise the first failure."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from tvm_distir.execution.runtime.collectives.fabric import (
    Fabric,
    ranks_text,
    too_late,
    worker_failed,
)
from tvm_distir.execution.runtime.collectives.native_fabric import NativeFabric
from tvm_distir.execution.runtime.program.io_layout import Entries
from tvm_distir.support import DistIRError, EngineError

GRACE_S = 1.0
"""The time that ranks may take to end after a failure; those that do not are given up."""


NO_RANK = -1
"""Rank of a failure that none of the ranks had."""


class ProgressMonitor:
    """Measures for how long nothing has changed."""

    def __init__(self) -> None:
        self._seen: tuple[int, ...] = ()
        self._since_s = time.monotonic()

    def seconds(self, *seen: int) -> float:
        """Return the seconds since a value was first seen unchanged."""
        now_s = time.monotonic()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s


class TerminationWatch:
    """Decides how long a controller waits for its ranks.

    Parameters
    ----------
    fabric : NativeFabric
        The fabric in which the ranks meet.
    ranks : sequence of int
    timeout_s : float
        The time for which a rank waits for another rank: once a rank has ended, the others must
        meet, post a message or end within it.
    """

    def __init__(self, fabric: NativeFabric, ranks: Sequence[int], timeout_s: float) -> None:
        self._fabric = fabric
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._stillness = ProgressMonitor()
        self._failed_s: float | None = None

    def go_on(self, ended: Collection[int]) -> bool:
        """Check the run; returns whether to wait any longer.

        Parameters
        ----------
        ended : collection of int
            Ranks that have ended.
        """
        now_s = time.monotonic()
        if self._failed_s is not None:
            return now_s - self._failed_s < GRACE_S
        if self._fabric.failure is not None:
            self._failed_s = now_s
            return True
        # Ranks that are slow to end after the first must end, however much they compute.
        still_s = self._stillness.seconds(len(ended), self._fabric.progress())
        if ended and still_s > self._timeout_s:
            late = [rank for rank in self._ranks if rank not in ended]
            limit = f"{self._timeout_s:g} s after {ranks_text(sorted(ended))}"
            problem = f"{ranks_text(late)} did not end within {limit}"
            self._fabric.fail(late[0], too_late(problem, ranks_text(late[:1])))
        return True


def stopped(ranks: Sequence[int], timeout_s: float) -> EngineError:
    """Return the failure of ranks whose processes do nothing, as DIST0613."""
    state = f"made no progress for {timeout_s:g} s: their processes are stopped or asleep"
    return too_late(f"{ranks_text(ranks)} {state}", ranks_text(ranks[:1]))


def raise_failure(fabric: Fabric, entries: Entries) -> None:
    """Raise the first failure of a run, if any.

    Raises
    ------
    EngineError
        What a rank raised, as DIST0612 unless it has another code.
    KeyboardInterrupt
        When the run was interrupted.
    """
    if fabric.failure is None:
        return
    rank, error = fabric.failure
    if isinstance(error, DistIRError | KeyboardInterrupt):
        raise error
    location = next((e.function for e in entries if rank in e.ranks), "run")
    raise worker_failed(error, rank, location) from error
