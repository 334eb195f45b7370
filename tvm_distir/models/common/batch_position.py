# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the dim of a reshaped tensor that holds the batch."""

from __future__ import annotations

import math


def batch_position(
    target: tuple[int, ...], batch: int, elements_before: int, elements_behind: int
) -> int | None:
    """Find the dim of a reshaped tensor that holds the batch.

    Parameters
    ----------
    target : tuple of int
        Resulting shape at the old batch.
    batch : int
        Old batch.
    elements_before, elements_behind : int
        Extents outside and inside the batch in the operand's row-major order, so that
        ``elements_before * batch * elements_behind`` is its size.

    Returns
    -------
    int or None
        The dim among those that span the batch: the dim that is the batch alone, else the dim that
        the batch ends, else the dim that it begins, else any.
    """
    spans = []
    for j, size in enumerate(target):
        offset, behind = math.prod(target[:j]), math.prod(target[j + 1 :])
        if elements_before % offset == 0 and elements_behind % behind == 0 and not size % batch:
            begins, ends = offset == elements_before, behind == elements_behind
            spans.append((begins and ends, ends, begins, -j))
    return -max(spans)[3] if spans else None
