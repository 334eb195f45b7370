# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The end of a run: how long to wait for ranks that do not end, and what a failure is told as."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from ..errors import DistIRError, RuntimeError_
from .fabric import Meetings, Watched, failure_text, ranks_text
from .layout import Entry

GRACE_S = 1.0
"""How long ranks may take to end after a failure; those that do not are given up."""

NOBODY = -1
"""Rank of a failure that none of the ranks had."""


class EndWatch:
    """Decides how long a controller waits for its ranks.

    Parameters
    ----------
    fabric : Watched
        Where the ranks meet.
    ranks : sequence of int
    timeout_s : float
        As long as a rank waits for another one: once a rank has ended, the others must meet, post
        a letter or end within it.
    """

    def __init__(self, fabric: Watched, ranks: Sequence[int], timeout_s: float) -> None:
        self._fabric = fabric
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._seen = (0, 0)
        self._since_s = time.monotonic()
        self._failed_s: float | None = None

    def go_on(self, ended: Collection[int]) -> bool:
        """Look at the run; returns whether to wait any longer.

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
        seen = (len(ended), self._fabric.progress())
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        elif ended and now_s - self._since_s > self._timeout_s:
            late = [rank for rank in self._ranks if rank not in ended]
            error = RuntimeError_(
                "DIST0613",
                f"{ranks_text(late)} did not end within {self._timeout_s:g} s after "
                f"{ranks_text(sorted(ended))}",
                place=ranks_text(late[:1]),
                remedy="Raise the engine's timeout_s if it is only slow.",
            )
            self._fabric.fail(late[0], error)
        return True


def raise_failure(fabric: Meetings, found: Sequence[Entry]) -> None:
    """Raise the first failure of a run, if there is one.

    Raises
    ------
    RuntimeError_
        What a rank raised, as DIST0612 unless it has a code of its own.
    KeyboardInterrupt
        When the run was interrupted.
    """
    if fabric.failure is None:
        return
    rank, error = fabric.failure
    if isinstance(error, DistIRError | KeyboardInterrupt):
        raise error
    raise RuntimeError_(
        "DIST0612",
        f"worker {rank}: {failure_text(error)}",
        place=next((e.function for e in found if rank in e.ranks), "run"),
        remedy="Run the engine virtual, which names the binding.",
    ) from error
