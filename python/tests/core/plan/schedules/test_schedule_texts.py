# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Numbers and texts of schedules, and the steps of stashes that go to the host."""

from __future__ import annotations

import pytest

from tests.core.plan.schedules.stored_activations import in_flight
from tvm_distir.core.plan.schedules.offloading import LEAST
from tvm_distir.core.plan.schedules.programs import FETCH, RUN, STORE, programs
from tvm_distir.core.plan.schedules.schedule import MOST, Schedule
from tvm_distir.support.errors.tree import PlanError


def test_a_schedule_is_resolved_from_each_kind_of_description() -> None:
    expected = Schedule("interleaved", 2, 4, 3)
    text = "interleaved:stages=2,micro_batches=4,chunks=3"
    data = {"kind": "interleaved", "stages": 2, "micro_batches": 4, "chunks": 3}
    assert [Schedule.resolve(spec) for spec in (text, data, expected)] == [expected] * 3
    assert Schedule.resolve(None) is None
    assert Schedule.parse(" 1f1b : stages = 2 ") == Schedule("1f1b", 2)


@pytest.mark.parametrize("name", ["stages", "micro_batches"])
def test_numbers_have_limits_that_are_inside(name: str) -> None:
    for number in (1, MOST):
        assert getattr(Schedule(**{name: number}), name) == number
        assert getattr(Schedule.parse(f"1f1b:{name}={number}"), name) == number
    for number in (0, MOST + 1, 10 * MOST, 10**12):
        for make in (lambda n: Schedule(**{name: n}), lambda n: Schedule.parse(f"1f1b:{name}={n}")):
            with pytest.raises(PlanError, match="DIST0236"):
                make(number)
    with pytest.raises(PlanError, match="DIST0236"):
        Schedule.parse(f"1f1b:{name}={'9' * 6000}")


@pytest.mark.parametrize(
    "text", ["1f1b:stages", "1f1b:stages=-1", "1f1b:cuts=2", "1f1b:stages=1.5"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="DIST0236"):
        Schedule.parse(text)


OFFLOADED = [
    ("1f1b", 4, 8, 1, (0, 2)),
    ("gpipe", 2, 6, 1, (0, 1)),
    ("interleaved", 2, 6, 2, (0, 3)),
    ("zero_bubble", 3, 7, 1, (0,)),
]


@pytest.mark.parametrize(("kind", "ranks", "micros", "chunks", "stages"), OFFLOADED)
def test_stashes_are_away_between_their_passes_alone(
    kind: str, ranks: int, micros: int, chunks: int, stages: tuple[int, ...]
) -> None:
    """All other steps stay in order; those of the named stages that wait long enough are moved."""
    plain = programs(Schedule(kind, ranks, micros, chunks))
    moved = programs(Schedule(kind, ranks, micros, chunks, offload=stages))
    for before, after in zip(plain, moved, strict=True):
        assert [step for step in after if step.kind not in (STORE, FETCH)] == before
        runs = [step for step in before if step.kind == RUN]
        at = {(s.unit.phase, s.stage, s.unit.micro): n for n, s in enumerate(runs)}
        expected = {
            (stage, micro)
            for phase, stage, micro in at
            if stage in stages and at["B", stage, micro] - at["F", stage, micro] >= LEAST
        }
        ran, away, seen = -1, set(), set()
        for step in after:
            key = step.stage, step.unit.micro
            forward, backward = at[("F", *key)], at[("B", *key)]
            if step.kind == RUN:
                ran += 1
                assert step.unit.phase != "B" or key not in away
            elif step.kind == STORE:  # during the unit behind the forward pass
                assert ran == forward + 1 and key not in seen
                away.add(key)
                seen.add(key)
            elif step.kind == FETCH:  # during the unit before the backward pass
                assert ran == backward - 2
                away.remove(key)
        assert seen == expected and not away


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_zero_bubble_v_holds_no_more_than_1f1b(ranks: int) -> None:
    """Of half stages, twice as many activations: Qi et al. 2023. Five ranks come to the limit."""
    most = [
        max(map(in_flight, Schedule("zero_bubble_v", ranks, micros).orders))
        for micros in range(1, 3 * ranks)
    ]
    assert max(most) <= 2 * ranks and (ranks != 5 or max(most) == 2 * ranks)
