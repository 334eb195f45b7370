# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Schedules: their orders, what theory says of them, and what is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from tests.core.plan.schedules.stored_activations import in_flight
from tvm_distir.core.plan.schedules.orders import ORDERS
from tvm_distir.core.plan.schedules.pipeline_actions import PipelineAction
from tvm_distir.core.plan.schedules.programs import RECV, RUN, SEND, RankStep, programs
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.core.plan.schedules.timeline import Times, timeline
from tvm_distir.support.errors.tree import PlanError

SIZES = [(ranks, micros) for ranks in (1, 2, 3, 4, 8) for micros in (1, 2, 3, 4, 8, 13)]


def _schedule(kind: str, ranks: int, micros: int) -> Schedule:
    return Schedule(kind, ranks, micros, chunks=2 if kind == "interleaved" else 1)


def _length(schedule: Schedule, times: Times) -> float:
    return max(each.end for each in timeline(schedule.orders, schedule.rank_of, times))


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_every_phase_of_every_micro_batch_runs_once(kind: str, ranks: int, micros: int) -> None:
    schedule = _schedule(kind, ranks, micros)
    ran = timeline(schedule.orders, schedule.rank_of, Times())
    phases = 3 if kind.startswith("zero_bubble") else 2
    seen = Counter((each.stage, each.unit.phase, each.unit.micro) for each in ran)
    assert len(seen) == schedule.stage_count * micros * phases
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_step_takes_what_the_closed_form_says(kind: str, ranks: int, micros: int) -> None:
    """``(M + P - 1)(f + b)``: Huang et al. 2019, Narayanan et al. 2021."""
    times = Times(3.0, 5.0)
    assert _length(_schedule(kind, ranks, micros), times) == (micros + ranks - 1) * 8.0


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_interleaving_divides_the_bubble(ranks: int, groups: int) -> None:
    """``(M v + P - 1)(f + b) / v`` with v stages per rank: Narayanan et al. 2021."""
    micros = ranks * groups
    schedule = Schedule("interleaved", ranks, micros, chunks=2)
    assert _length(schedule, Times(1.0, 2.0)) == (micros * 2 + ranks - 1) * 3.0


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_zero_bubble_leaves_a_third_of_the_bubble(ranks: int, groups: int) -> None:
    """H1 takes ``3 M + P - 1`` for unit times (1F1B: ``3 (M + P - 1)``): Qi et al. 2023."""
    micros = ranks * groups
    schedule = Schedule("zero_bubble", ranks, micros)
    assert _length(schedule, Times(1, 1, 1)) == 3 * micros + ranks - 1


@pytest.mark.parametrize(("ranks", "micros"), [(2, 8), (4, 4), (4, 13), (8, 24)])
def test_zero_bubble_holds_no_more_than_1f1b(ranks: int, micros: int) -> None:
    """Activations are held until the gradients of weights are made: Qi et al. 2023, table 2."""
    for units in Schedule("zero_bubble", ranks, micros).orders:
        steps = [{"F": 1, "B": 0, "W": -1}[unit.phase] for unit in units]
        assert max(itertools.accumulate(steps)) == ranks


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_zero_bubble_v_waits_only_for_the_first_micro_batch(ranks: int) -> None:
    schedule = Schedule("zero_bubble_v", ranks, 2 * ranks)
    assert _length(schedule, Times(1, 1, 1)) == 6 * 2 * ranks + ranks - 1


@pytest.mark.parametrize(("ranks", "micros"), [(4, 8), (2, 8), (8, 8), (3, 5)])
def test_micro_batches_in_flight(ranks: int, micros: int) -> None:
    assert [in_flight(u) for u in Schedule("gpipe", ranks, micros).orders] == [micros] * ranks
    falling = [ranks - rank for rank in range(ranks)]
    assert [in_flight(u) for u in Schedule("1f1b", ranks, micros).orders] == falling
    assert [in_flight(u) for u in Schedule("zero_bubble", ranks, micros).orders] == falling
    several = Schedule("interleaved", ranks, ranks * 2, chunks=3).orders
    warm = [2 * (ranks - rank - 1) + 2 * ranks + 1 for rank in range(ranks)]
    assert [in_flight(u) for u in several] == [min(6 * ranks, n) for n in warm]
    most = max(in_flight(u) for u in Schedule("zero_bubble_v", ranks, micros).orders)
    assert most <= 2 * ranks


def _meet(first: RankStep, second: RankStep) -> bool:
    return (
        {first.kind, second.kind} == {SEND, RECV}
        and (first.stage, first.peer) == (second.peer, second.stage)
        and (first.unit.phase, first.unit.micro) == (second.unit.phase, second.unit.micro)
    )


def _waits_forever(matches: list[list[RankStep]]) -> bool:
    """Whether programs stop where a send waits for its receive."""
    at = [0] * len(matches)
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(matches):
            while at[rank] < len(steps) and steps[at[rank]].kind == RUN:
                at[rank] += 1
                moved = True
        heads = [steps[at[r]] if at[r] < len(steps) else None for r, steps in enumerate(matches)]
        for a, b in itertools.combinations(range(len(matches)), 2):
            single, two = heads[a], heads[b]
            if single is not None and two is not None and _meet(single, two):
                at[a] += 1
                at[b] += 1
                moved = True
                break
    return any(n < len(steps) for n, steps in zip(at, matches, strict=True))


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_no_rank_waits_forever_for_another(kind: str, ranks: int, micros: int) -> None:
    assert not _waits_forever(programs(_schedule(kind, ranks, micros)))


def test_the_check_of_waiting_finds_a_circle() -> None:
    ends = [
        [
            RankStep(RECV, PipelineAction("F", 0), 0, 1),
            RankStep(SEND, PipelineAction("F", 1), 0, 1),
        ],
        [
            RankStep(RECV, PipelineAction("F", 1), 1, 0),
            RankStep(SEND, PipelineAction("F", 0), 1, 0),
        ],
    ]
    assert _waits_forever(ends)


def _custom(units: list[list[list[Any]]], **more: Any) -> dict[str, Any]:
    return {"kind": "custom", "stages": 2, "micro_batches": 1, "units": units, **more}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"kind": "1f2b"}, "no schedule"),
        ({"stages": 0}, "stages"),
        ({"micro_batches": 1 << 40}, "micro_batches"),
        ({"kind": "1f1b", "chunks": 2}, "chunks"),
        ({"cuts": ["a"], "stages": 3}, "cuts"),
        ({"unit": []}, "unit"),
        (_custom([[["F", 0], ["B", 0]]]), "ranks"),
        (_custom([[["F", 0], ["B", 0]], [["F", 0]]]), "missing"),
        (_custom([[["F", 0], ["F", 0], ["B", 0]], [["F", 0], ["B", 0]]]), "twice"),
        (_custom([[["F", 0], ["B", 0]], [["B", 0], ["F", 0]]]), "waits"),
        (_custom([[["F", 0], ["B", 0]], [["F", 0], ["B", 1]]]), "does not belong to this rank"),
        (_custom([[["F", 0], ["X", 0]], [["F", 0], ["B", 0]]]), "units/0/1/0: .X. is not"),
    ],
)
def test_wrong_schedules_are_refused(data: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says) as refused:
        Schedule.resolve(data)
    assert refused.value.code == "DIST0236"


def test_schedules_survive_their_json_and_text_forms() -> None:
    custom = _custom([[["F", 0], ["B", 0]], [["F", 0], ["B", 0]]], devices=[[0], [5]])
    for data in ({"kind": "interleaved", "stages": 2, "micro_batches": 4, "chunks": 3}, custom):
        created = Schedule.resolve(data)
        assert created is not None
        assert Schedule.resolve(created.to_dict()) == created
    text = Schedule.resolve("1f1b:stages=4,micro_batches=8")
    assert text == Schedule("1f1b", 4, 8)
    with pytest.raises(PlanError, match="DIST0236"):
        Schedule.resolve("1f1b:stages")
