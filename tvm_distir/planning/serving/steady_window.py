# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the window of a run in which steady state is measured: a whole number of its cycles.

In a half-open window ``[low, high)`` the times that requests that begin in it are in the system add
up to the integral of the number in the system, and ``R(high) - R(low)``, with ``R(t)`` the times
that those in the system at ``t`` still are. Rates and means therefore obey Little's law (Little
1961, "A proof for the queuing formula L = lambda W") where ``R`` is the same at both edges, and as
many requests end as begin where their number is. Both are so between two times at which a process
regenerates (Asmussen and Glynn 2007, "Stochastic simulation", ch. IV.4). Users of a closed loop
whose requests are alike come in waves; edges at other places than whole waves would count one wave
too many.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_WARM_UP = 2
"""Lives of a request that are left out at the beginning."""
_LEAST, _MOST = 0.3, 0.9
"""The window of a run that is too short for this, as shares of the time of arrivals."""
_EDGES = 256
"""The most places of an edge that are compared."""
_ALIKE = 1e-3
"""The difference between edges that is small enough, as a share of the requests of a window."""


def complete_cycles(begin: Floats, end: Floats, cool_down: float = 1.0) -> tuple[float, float]:
    """Return the edges of a half-open window whose states at both edges are alike.

    Parameters
    ----------
    begin, end : float64 arrays (requests,)
        When each request enters the system and leaves it, in seconds.
    cool_down : float
        Lives of a request that are left out before the last one begins.

    Returns
    -------
    low, high : float
        Times at which requests begin, of the longest window with edges that are alike, or of the
        window with the most similar ones.
    """
    begin, end = np.sort(begin), end[np.argsort(begin, kind="stable")]
    life = float(np.median(end - begin))
    first, last = float(begin[0]), float(begin[-1])
    low, high = first + _WARM_UP * life, last - cool_down * life
    if high - low < life:
        low, high = (first + share * (last - first) for share in (_LEAST, _MOST))
    times = np.unique(begin[(begin >= low) & (begin <= high)])
    third = (high - low) / 3
    lows, highs = times[times <= low + third], times[times >= high - third]
    if not lows.size or not highs.size:
        return low, high
    lows, highs = (edges[:: -(-edges.size // _EDGES)] for edges in (lows, highs[::-1]))
    (before, inside, rest), (until, still, left) = (_states(begin, end, t) for t in (lows, highs))
    count = np.maximum(until[None, :] - before[:, None], 1)
    mean = max(float((end - begin).mean()), 1e-12)
    unlike = np.abs(still[None, :] - inside[:, None])
    unlike = (unlike + np.abs(left[None, :] - rest[:, None]) / mean) / count
    spans = highs[None, :] - lows[:, None]
    similar = unlike <= max(_ALIKE, float(unlike.min()))
    row, column = np.unravel_index(np.argmax(np.where(similar, spans, -1.0)), spans.shape)
    if spans[row, column] <= 0:
        return low, high
    return float(lows[row]), float(highs[column])


def _states(begin: Floats, end: Floats, times: Floats) -> tuple[Floats, Floats, Floats]:
    """Return, just before each time, the requests that have begun, those in the system, and the
    seconds that these still are in it together.
    """
    sums = np.concatenate([[0.0], np.cumsum(end)])
    ends = np.sort(end)
    ended = np.concatenate([[0.0], np.cumsum(ends)])
    begun = np.searchsorted(begin, times, side="left")
    departed = np.searchsorted(ends, times, side="right")
    inside = begun - departed
    return begun.astype(float), inside.astype(float), sums[begun] - ended[departed] - inside * times
