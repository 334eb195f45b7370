# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Live memory of one device over time, byte by byte.

Inputs, weights and constants are resident. A buffer lives from the start of the task that
produces it to the end of the last task that reads it, wherever in the calls that is; views keep
what they look at alive; what the entry returns lives to the end. Memory freed at an instant can
be taken again at the same instant. Scratch memory inside kernels is not counted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FOREVER = (1 << 63) - 1
"""When buffers are freed that nobody frees."""


def live_memory(
    resident_bytes: int,
    buffer_bytes: Ints,
    alloc: Ints,
    free: Ints,
) -> tuple[Ints, Ints]:
    """Live bytes over time.

    Parameters
    ----------
    resident_bytes : int
        At hand from beginning to end.
    buffer_bytes, alloc, free : int64 arrays (buffers,)
        Size of each buffer, and the half-open interval in which it lives.

    Returns
    -------
    time, live : int64 arrays
        ``live[i]`` bytes from ``time[i]`` to ``time[i + 1]``, which differ; the first time is 0.
    """
    real = (free > alloc) & (buffer_bytes > 0)
    freed = real & (free < FOREVER)
    when = np.concatenate((np.zeros(1, np.int64), alloc[real], free[freed]))
    change = np.concatenate(
        (np.array([resident_bytes], np.int64), buffer_bytes[real], -buffer_bytes[freed])
    )
    order = np.argsort(when, kind="stable")
    time, live = when[order], np.cumsum(change[order])
    last = np.append(time[1:] != time[:-1], True)
    time, live = time[last], live[last]
    changes = np.append(True, live[1:] != live[:-1])
    return time[changes], live[changes]


def lifetimes(
    task_start: Ints,
    task_end: Ints,
    buffer_task: Ints,
    use_task: Ints,
    use_buffer: Ints,
    kept: Ints,
) -> tuple[Ints, Ints]:
    """When each buffer is allocated and freed.

    Parameters
    ----------
    task_start, task_end : int64 arrays (tasks,)
    buffer_task : int64 array (buffers,)
        The producer.
    use_task, use_buffer : int64 arrays (uses,)
    kept : int64 array
        Buffers that live to the end (:data:`FOREVER`).
    """
    alloc, free = task_start[buffer_task], task_end[buffer_task].copy()
    np.maximum.at(free, use_buffer, task_end[use_task])
    free[kept] = FOREVER
    return alloc, free
