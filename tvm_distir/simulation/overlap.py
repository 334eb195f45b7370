# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The order between compute and collectives that a program asks for, beyond its data.

A device issues its ops in program order. A collective that is *started* waits for the compute
ops issued before it, as a kernel on a stream of its own that waits for an event; its ``wait``
stands on the compute stream. A plain collective only needs its data, or, where collectives
*block*, runs between the compute ops before it and those after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .costs import COMPUTE, OpRow
from .flat import Flat

Ints = npt.NDArray[np.int64]


def order_waits(flat: Flat, rows: Sequence[OpRow], blocking: bool) -> Ints:
    """Give pairs (task, task it waits for) that follow from the order of issue.

    Parameters
    ----------
    flat : Flat
    rows : sequence of OpRow
    blocking : bool
        Whether plain collectives block.

    Returns
    -------
    int64 array (pairs, 2)
    """
    count = int(flat.row.size)
    if not count:
        return np.zeros((0, 2), np.int64)
    computes = np.array([row.stream == COMPUTE for row in rows], bool)[flat.row]
    started = np.array([row.op.is_start for row in rows], bool)[flat.row]
    blocks = blocking_rows(rows, blocking)[flat.row]
    task = np.arange(count, dtype=np.int64)
    before = _last_before(computes)
    behind = (started | blocks) & (before >= 0)
    blocker = _last_before(blocks)
    held = computes & (blocker >= 0) & (blocker > before)
    return np.concatenate(
        (
            np.stack((task[behind], before[behind]), axis=1),
            np.stack((task[held], blocker[held]), axis=1),
        )
    )


def blocking_rows(rows: Sequence[OpRow], blocking: bool) -> npt.NDArray[np.bool_]:
    """Which ops are collectives that stop the compute stream; ``blocking``: plain ones do."""
    return np.array(
        [blocking and row.op.kind == "collective" and not row.op.is_start for row in rows], bool
    )


def _last_before(chosen: npt.NDArray[np.bool_]) -> Ints:
    """Per task the last of the chosen ones issued before it, or -1."""
    last = np.maximum.accumulate(np.where(chosen, np.arange(chosen.size), -1))
    return np.concatenate((np.array([-1]), last[:-1])).astype(np.int64)
