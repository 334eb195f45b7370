# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute live memory over time from live memory in issue order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def curve(resident: int, start: Ints, during: Ints, end: int, after: int) -> tuple[Ints, Ints]:
    """Return the live bytes over time.

    An op takes its memory when it is issued: no later than it starts, nor than any op behind it.

    Parameters
    ----------
    resident : int
        Bytes at time 0, before anything is issued.
    start, during : int64 arrays (ops,)
        In order of issue: when each starts, and the most that is live meanwhile.
    end, after : int
        When the last ends, and what is left then.

    Returns
    -------
    time, live : int64 arrays
        ``live[i]`` bytes from ``time[i]`` on. Where several ops are issued at one time, the most
        of them stands before the last of them, at the same time.
    """
    issued = np.minimum.accumulate(start[::-1])[::-1]
    time = np.concatenate(([0], issued, [end]))
    live = np.concatenate(([resident], during, [after]))
    first = np.flatnonzero(np.append(True, time[1:] != time[:-1]))
    most = np.maximum.reduceat(live, first)
    last = live[np.append(first[1:], time.size) - 1]
    time, live = np.repeat(time[first], 2), np.stack((most, last), axis=1).ravel()
    kept = np.append(True, live[1:] != live[:-1])
    return time[kept], live[kept]
