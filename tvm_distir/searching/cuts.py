# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Layers into stages: the dearest stage as cheap as can be, each within the memory of its rank."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence


def cut(
    times: Sequence[int], parts: int, needs: Sequence[Sequence[int]] = (), room: int = 0
) -> list[range] | None:
    """Cut a sequence into parts of which the dearest is as cheap as can be.

    A part that begins later is the shorter for it, and fits where a longer one does; so parts that
    are as long as can be, one after the other, reach as far as any, and the least that the
    dearest may take is found by halving.

    Parameters
    ----------
    times : sequence of int
        Of the items.
    parts : int
        Some are empty where there are more than items.
    needs : sequence of sequence of int, optional
        Bytes of each item in the first, second, ... part; of a part they are added up.
    room : int
        Bytes that a part may take, where ``needs`` are given.

    Returns
    -------
    list of range, or None
        None where no cut fits.
    """
    low, high = max(times), sum(times)
    at = _sums(times)
    held = [_sums(row) for row in needs]
    if _filled(at, high, parts, held, room) is None:
        return None
    while low < high:
        most = (low + high) // 2
        if _filled(at, most, parts, held, room) is None:
            low = most + 1
        else:
            high = most
    return _filled(at, low, parts, held, room)


def _sums(row: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(row)]


def _filled(
    at: Sequence[int], most: int, parts: int, held: Sequence[Sequence[int]], room: int
) -> list[range] | None:
    """Parts of at most so much, each as long as can be; None where they do not reach the end.

    ``at`` and ``held`` have the sums of what stands before each item.
    """
    found, begin, count = [], 0, len(at) - 1
    for part in range(parts):
        end = bisect_right(at, at[begin] + most) - 1
        if held:
            end = min(end, bisect_right(held[part], held[part][begin] + room) - 1)
        found.append(range(begin, end))
        begin = end
    return found if begin == count else None
