# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes live ranges and the bytes that are live at each step, from numbers alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Buffer = TypeVar("Buffer", bound=Hashable)


def last_reads(
    reads: Iterable[Iterable[Buffer]], results: Iterable[Buffer] = ()
) -> dict[Buffer, int]:
    """Return the last step that reads each buffer.

    Parameters
    ----------
    reads : iterable of iterable of Buffer
        The buffers that each step reads.
    results : iterable of Buffer
        The buffers that are read after all steps; their last step is the number of steps.
    """
    last: dict[Buffer, int] = {}
    step = -1
    for step, buffers in enumerate(reads):
        last.update(dict.fromkeys(buffers, step))
    last.update(dict.fromkeys(results, step + 1))
    return last


def live_bytes(
    first: npt.ArrayLike, last: npt.ArrayLike, size: npt.ArrayLike, steps: int
) -> npt.NDArray[np.int64]:
    """Return the bytes that are live at each step.

    Parameters
    ----------
    first, last : array_like (buffers,)
        The steps between which each buffer is live, both included; the last may lie behind all
        steps.
    size : array_like (buffers,) or int
        The bytes of each buffer, or of all buffers alike.
    steps : int

    Returns
    -------
    int64 array (steps,)
    """
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, np.asarray(first, np.int64), size)
    np.subtract.at(change, np.minimum(np.asarray(last, np.int64) + 1, steps), size)
    return np.cumsum(change)[:-1]
