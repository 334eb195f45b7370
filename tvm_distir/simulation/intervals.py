# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Unions and overlaps of sets of intervals, in integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Disjoint, sorted intervals that cover the same points (empty ones vanish)."""
    real = end > start
    order = np.argsort(start[real], kind="stable")
    first, last = start[real][order], np.maximum.accumulate(end[real][order])
    if first.size == 0:
        return first, last
    opens = np.concatenate(([True], first[1:] > last[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return first[opens], last[closes]


def measure(start: Ints, end: Ints) -> int:
    """Sum of the lengths."""
    return int((end - start).sum())


def overlap(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> int:
    """Length that two unions (as :func:`union` gives them) have in common."""
    start, end = a
    if start.size == 0 or b[0].size == 0:
        return 0
    before = np.concatenate(([0], np.cumsum(end - start)))

    def covered(until: Ints) -> Ints:
        """Length of ``a`` up to each point."""
        number = np.searchsorted(start, until, side="right")
        inside = np.where(number > 0, np.minimum(until, end[number - 1]) - start[number - 1], 0)
        done: Ints = np.where(number > 0, before[number - 1], 0) + inside
        return done

    return int((covered(b[1]) - covered(b[0])).sum())
