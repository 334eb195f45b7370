# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the last uses of buffers by the events of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .rank_events import ALWAYS, RankEvents
from .stage_actions import LastUse


def deaths_of(walk: RankEvents) -> list[LastUse]:
    """Return, per event, the buffers that die in it."""
    categories, sizes = np.array(walk.categories, np.int64), np.array(walk.sizes, np.int64)
    known: dict[Any, LastUse] = {}
    deaths = []
    for number, event in enumerate(walk.events):
        ids = event.ids
        dying, codes, size = walk.last[ids] == number, categories[ids], sizes[ids]
        same = _same(ids.tolist())
        key = dying.tobytes(), codes.tobytes(), size.tobytes(), same
        if key not in known:
            buffers = np.flatnonzero(dying).tolist()
            first = same or tuple(range(ids.size))
            known[key] = LastUse(
                tuple(b for b in buffers if first[b] == b), first,
                tuple(codes.tolist()), tuple(size.tolist()),
            )  # fmt: skip
        deaths.append(known[key])
    return deaths


def _same(ids: Sequence[int]) -> tuple[int, ...]:
    """Return, per place, the first of the same instance; empty where all differ."""
    counted = [i for i in ids if i != ALWAYS]
    if len(set(counted)) == len(counted):
        return ()
    first: dict[int, int] = {}
    return tuple(n if i == ALWAYS else first.setdefault(i, n) for n, i in enumerate(ids))
