# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find tandem repeats in a sequence of numbers in O(n log^2 n)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Periodic range: ``s[i] == s[i + period]`` wherever both are inside.

    Attributes
    ----------
    start, stop : int
        The stretch, ``stop`` excluded. It cannot be made longer.
    period : int
    """

    start: int
    stop: int
    period: int

    @property
    def count(self) -> int:
        """Return how often the period fits into the range."""
        return (self.stop - self.start) // self.period


def tandem_runs(symbols: Ints, least_period: int, least_count: int) -> list[Run]:
    """Find ranges that consist of ``least_count`` or more equal parts.

    For windows of growing width, each is compared with the nearest earlier equal window. Where that
    is at the same distance for a row of neighbours, the row repeats with this distance as its
    period. A window of a run's period finds the run, as no nearer window is equal: otherwise the
    period would be shorter.

    Parameters
    ----------
    symbols : array of int64, (n,)
        A number per element, not negative.
    least_period : int
        Shorter periods are left out.
    least_count : int
        At least 2.

    Returns
    -------
    runs : list of Run
        The runs by period, then by start.
    """
    pieces: list[tuple[int, int, int]] = []
    for width, names in _windows(symbols):
        pieces += _pieces(names, width, least_period, least_count)
    pieces.sort()
    runs: list[Run] = []
    for period, start, stop in pieces:
        last = runs[-1] if runs else None
        # Both stretches say s[i] == s[i + period] up to their stop less the period.
        if last is not None and last.period == period and start <= last.stop - period:
            runs[-1] = Run(last.start, max(last.stop, stop), period)
        else:
            runs.append(Run(start, stop, period))
    return [run for run in runs if run.count >= least_count]


def occurrences(symbols: Ints, pattern: Ints) -> list[int]:
    """Return where a pattern starts in a sequence, overlapping or not, in order."""
    limit = len(symbols) - len(pattern) + 1
    if limit <= 0:
        return []
    values, counts = np.unique(symbols, return_counts=True)
    rarity = counts[np.minimum(np.searchsorted(values, pattern), len(values) - 1)]
    pivot = int(np.argmin(rarity))
    starts = np.flatnonzero(symbols == pattern[pivot]) - pivot
    starts = starts[(starts >= 0) & (starts < limit)]
    return [int(s) for s in starts if np.array_equal(symbols[s : s + len(pattern)], pattern)]


def _windows(symbols: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield widths 2, 3, 4, 6, 8, 12, ... and a number per window: equal where windows are."""
    names: Ints = np.unique(symbols, return_inverse=True)[1].astype(np.int64)
    width = 1
    while 2 * width < len(symbols):
        doubled = _number_windows(names, width, names)
        yield 2 * width, doubled
        wider = _number_windows(doubled, 2 * width, names)
        if len(wider):
            yield 3 * width, wider
        if len(np.unique(doubled)) == len(doubled):
            return  # no window of this width occurs twice, so no wider window does
        names, width = doubled, 2 * width


def _number_windows(left: Ints, left_width: int, right: Ints) -> Ints:
    """Number the windows composed of a left window and the adjacent right window."""
    count = max(0, len(right) - left_width)
    if not count:
        return np.zeros(0, np.int64)
    pairs = left[:count] * (int(right.max()) + 1) + right[left_width : left_width + count]
    joined: Ints = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return joined


def _pieces(
    names: Ints, width: int, least_period: int, least_count: int
) -> list[tuple[int, int, int]]:
    """Return runs of adjacent windows with the same distance, as (period, start, stop)."""
    order = np.argsort(names, kind="stable")
    repeated = names[order[1:]] == names[order[:-1]]
    distance = np.zeros(len(names), np.int64)
    distance[order[1:][repeated]] = (order[1:] - order[:-1])[repeated]
    edges = np.flatnonzero(np.diff(distance)) + 1
    first = np.concatenate([np.zeros(1, np.int64), edges])
    stop = np.concatenate([edges, np.full(1, len(names), np.int64)])
    period = distance[first]
    matched = stop - first + width - 1
    # A piece far shorter than its period belongs to a run that a wider window finds whole.
    useful = (period >= max(1, least_period)) & (2 * matched >= period)
    return [
        (int(period[i]), int(first[i] - period[i]), int(first[i] + matched[i]))
        for i in np.flatnonzero(useful)
    ]
