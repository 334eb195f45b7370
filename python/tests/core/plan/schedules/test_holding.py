# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What ranks hold while they run units: the closed forms, and counts from the orders."""

from __future__ import annotations

import pytest

from tvm_distir.core.plan.schedules.pipeline_actions import BACKWARD, FORWARD, WEIGHT
from tvm_distir.core.plan.schedules.resident_values import holdings
from tvm_distir.core.plan.schedules.schedule import Schedule

SCHEDULES = [
    Schedule("gpipe", 3, 4),
    Schedule("1f1b", 1, 3),
    Schedule("1f1b", 4, 6),
    Schedule("1f1b", 4, 2),
    Schedule("interleaved", 2, 4, 2),
    Schedule("interleaved", 3, 5, 2),
    Schedule("zero_bubble", 3, 5),
    Schedule("zero_bubble_v", 2, 4),
]


@pytest.mark.parametrize("micros", [2, 8])
@pytest.mark.parametrize("ranks", [2, 4])
def test_closed_forms(ranks: int, micros: int) -> None:
    """Beside the micro-batch that runs: of 1F1B P - s - 1, of GPipe M - 1; ZB-H1 s wait for W."""
    for rank, (single,) in enumerate(holdings(Schedule("1f1b", ranks, micros))):
        assert single.kept.max() == min(micros, ranks - rank) - 1
        assert single.later.max() == 0
    for (single,) in holdings(Schedule("gpipe", ranks, micros)):
        assert single.kept.max() == micros - 1
    for rank, (single,) in enumerate(holdings(Schedule("zero_bubble", ranks, micros))):
        assert single.kept.max() == min(micros, ranks - rank) - 1
        assert single.later.max() == min(micros, rank + 1)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}-{s.stages}")
def test_counts_follow_from_the_orders(schedule: Schedule) -> None:
    for units, local in zip(schedule.orders, holdings(schedule), strict=True):
        for chunk, stored in enumerate(local):
            for place, unit in enumerate(units):
                done = {(u.phase, u.micro) for u in units[:place] if u.chunk == chunk}
                now = (unit.phase, unit.micro) if unit.chunk == chunk else None
                remaining = [
                    m
                    for m in range(schedule.micro_batches)
                    if (FORWARD, m) in done and not {(BACKWARD, m)} & {now, *done}
                ]
                later = [
                    m
                    for m in range(schedule.micro_batches)
                    if {(BACKWARD, m)} & {now, *done} and (WEIGHT, m) not in done
                ]
                last = WEIGHT if schedule.splits_backward else BACKWARD
                assert stored.summing[place] == any(phase == last for phase, _ in done)
                assert stored.running[place] == (unit.chunk == chunk)
                assert stored.kept[place] == len(remaining)
                assert stored.later[place] == (len(later) if schedule.splits_backward else 0)
            for messages in (stored.activations, stored.gradients, stored.results, stored.given):
                assert 0 <= messages.min() <= messages.max() <= schedule.micro_batches
            assert not stored.results.max() and not stored.given.max()  # they go at once
