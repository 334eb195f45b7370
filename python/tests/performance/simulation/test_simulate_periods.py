# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memory of a pipeline's ranks: what repeats is left out, and the same comes of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.performance.simulation.hand_stages import Sizes, stages
from tvm_distir.core.plan.schedules.programs import programs
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.memory import ranks
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v"])
def test_memory_of_steady_periods(kind, monkeypatch):
    shorter, result = ranks.cut, []
    for count in (1, 3):
        schedule = Schedule(kind, count, 30, 2 if kind == "interleaved" else 1)
        program = stages(schedule, Sizes(kept=3000, moved=700, weights=5000), summed=True)
        memories = RankMemories(program, CachingAllocator(program))
        for rank, steps in enumerate(programs(schedule)):
            monkeypatch.setattr(ranks, "cut", shorter)
            result.append(shorter(steps, schedule))
            less = memories.of(rank)
            monkeypatch.setattr(ranks, "cut", lambda *_: None)
            whole = memories.of(rank)
            assert less.account == whole.account
            assert np.array_equal(less.during, whole.during)
            assert np.array_equal(less.after, whole.after)
            names = [[(e.name, e.stage) for e in each.events] for each in (less, whole)]
            assert names[0] == names[1]
    assert all(each is None for each in result) == (kind == "gpipe")


def test_nothing_is_left_out_where_weights_are_stashed():
    schedule = Schedule("1f1b", 1, 30, stash=True)
    assert ranks.cut(programs(schedule)[0], schedule) is None
