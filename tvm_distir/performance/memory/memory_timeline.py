# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute live bytes op by op and over time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tvm_distir.support import Steps, memoized_steps, unrolled

from .caching_allocator import CachingAllocator
from .call_variants import CallVariant

Ints = npt.NDArray[np.int64]


def curve(resident: int, start: Ints, during: Ints, end: int, after: int) -> tuple[Ints, Ints]:
    """Return the live bytes over time.

    An op takes its memory when it is issued: no later than it starts, nor than any op behind it.

    Parameters
    ----------
    resident : int
        Bytes at time 0, before anything is issued.
    start, during : int64 arrays (ops,)
        The start of each op, in order of issue, and the most bytes that are live while it runs.
    end, after : int
        The end of the last op, and the bytes that are left then.

    Returns
    -------
    time, live : int64 arrays
        The bytes ``live[i]`` from ``time[i]`` on. Where several ops are issued at the same time,
        the most of them is placed before the last of them, at the same time.
    """
    time = np.concatenate(([0], np.minimum.accumulate(start[::-1])[::-1], [end]))
    live = np.concatenate(([resident], during, [after]))
    first = np.flatnonzero(np.append(True, time[1:] != time[:-1]))
    most = np.maximum.reduceat(live, first)
    last = live[np.append(first[1:], time.size) - 1]
    time, live = np.repeat(time[first], 2), np.stack((most, last), axis=1).ravel()
    changed = np.append(True, live[1:] != live[:-1])
    return time[changed], live[changed]


class LiveBytes:
    """Live bytes of uses of functions, op by op, callees spliced in.

    Parameters
    ----------
    framework : CachingAllocator
    branches : mapping of str to str
        The function that runs for each branch, ``function/binding``.
    """

    def __init__(self, framework: CachingAllocator, branches: Mapping[str, str]) -> None:
        self.framework, self.taken = framework, branches

    def of(self, use: CallVariant) -> tuple[Ints, int]:
        """Return the live bytes while each op runs, above those at the entry, and behind the last.

        Views are no ops.
        """
        return unrolled(self._walk(use))

    @memoized_steps
    def _walk(self, use: CallVariant) -> Steps[tuple[Ints, int]]:
        framework = self.framework
        lives, shape = framework.lives[use.function], framework.shape(use)
        parts: list[Ints] = []
        single: list[int] = []
        live = -sum(shape.sizes[p] for p in shape.owned if p in lives.unread)

        def flush() -> None:
            if single:
                parts.append(np.array(single, np.int64))
                single.clear()

        for change in framework.changes(lives, shape):
            step = change.step
            if change.inner:
                branch = self.taken.get(f"{use.function}/{step.op.name}", step.op.callee)
                call = next(i for i in change.inner if i.use.function == branch)
                during, _ = yield self._walk(call.use)
                elsewhere = sum(shape.sizes[buffer] for buffer in change.handed - set(call.handed))
                flush()
                parts.append(during + (live - elsewhere))
                live += framework.run(change, shape).live
            else:
                live += sum(shape.sizes[buffer] for buffer in step.new)
                single.append(live)
            live -= sum(shape.sizes[buffer] for buffer in change.freed)
        flush()
        return np.concatenate(parts) if parts else np.zeros(0, np.int64), live
