# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps in stages whose stashes wait in the host's memory: the same results."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tests.transforms.training.pipeline_models import schedule_of, tower
from tvm_distir.core.plan.schedules.offloading import absences
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import PlanError
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule, SerializePipeline

STAGES, MICROS = 2, 6


@functools.cache
def _step(kind: str, recompute: str = "none", rate: float = 0.0, batch: int = 2) -> Any:
    schedule = schedule_of(kind, STAGES, MICROS)
    model = tower(4, batch, tied=False, rate=rate)
    return td.train_step(model, "mse", "adam", schedule=schedule, recompute=recompute)


def _plans(kind: str, step: Any) -> list[Any]:
    """Without, and with what is kept by all stages in the host's memory."""
    chunks = ",chunks=2" if kind == "interleaved" else ""
    words = f"pipeline:schedule={kind},micro_batches={MICROS}{chunks}"
    mesh = {"pp": STAGES, "dp": 2}
    return [
        make_plan(step, f"{words},offload={stages}+data_parallel", mesh)
        for stages in ("none", "all")
    ]


def _copies(programs: Any) -> tuple[int, int]:
    text = "".join(programs[name].script() for name in map(str, ("main_mesh0", "main_mesh1")))
    return text.count("tvm_distir.host.store"), text.count("tvm_distir.host.fetch")


@pytest.mark.parametrize(
    ("kind", "recompute", "rate", "engine"),
    [
        ("gpipe", "none", 0.25, "threads"),
        ("interleaved", "layer=full", 0.0, "virtual"),
        ("zero_bubble", "none", 0.0, "virtual"),
    ],
)
def test_the_same_bits(kind: str, recompute: str, rate: float, engine: str) -> None:
    step = _step(kind, recompute, rate)
    without, moved = _plans(kind, step)
    values = draw_inputs(SerializePipeline()(step))
    programs = ExpandSchedule()(td.distribute(step, moved))
    stores, fetches = _copies(programs)
    assert stores == fetches > 0
    expected = td.run(td.distribute(step, without), values, engine=engine)
    for left, other in zip(td.run(programs, values, engine=engine), expected, strict=True):
        np.testing.assert_array_equal(left, other)


def test_what_is_made_again_is_not_stored() -> None:
    """A copy per slot of the stash and micro-batch that is away."""
    counts = {}
    for recompute in ("none", "layer=full"):
        step = _step("gpipe", recompute)
        local = td.distribute(step, _plans("gpipe", step)[1])
        staged = td.export(local).staged
        assert staged is not None
        slots = sum(
            len(staged.stage_kind_of(each.stage).stash)
            for rank in range(STAGES)
            for each in absences(staged.schedule, rank)
        )
        assert _copies(ExpandSchedule()(local)) == (slots, slots)
        counts[recompute] = slots
    assert 0 < counts["layer=full"] < counts["none"]


def test_memory_and_the_storage_plan_of_tvm_shrink() -> None:
    step = _step("gpipe", batch=64)
    peaks, planned = [], []
    for plan in _plans("gpipe", step):
        local = td.distribute(step, plan)
        program = td.export(local)
        result = td.simulate(program, "dgx-a100")
        peaks.append([lane.account.peak_bytes for lane in result.lanes])
        storage = td.plan_storage(local)
        planned.append([storage.walk(name).peak for name in storage.entries])
    assert program.staged is not None
    for rank in range(STAGES):
        role = program.staged.stage_kind_of(rank)
        stash = sum(-(-role.slots[slot].bytes // 512) * 512 for slot in role.stash)
        assert peaks[0][rank] - peaks[1][rank] == (MICROS - 3) * stash
        stored = sum(role.slots[slot].bytes for slot in role.stash)
        assert planned[0][rank] - planned[1][rank] >= (MICROS - 3) * stored


def test_a_plan_says_it_and_is_given_back() -> None:
    step = _step("1f1b")
    _, plan = _plans("1f1b", step)
    assert plan.schedule.offload == (0, 1)
    local = td.distribute(step, replace(plan, schedule=replace(plan.schedule, offload=(0,))))
    staged = td.export(local).staged
    assert staged is not None
    assert staged.schedule.offload == (0,)
    for wrong in ("some", "0/5", "1/0"):
        with pytest.raises(PlanError, match="DIST0236"):
            make_plan(step, f"pipeline:micro_batches={MICROS},offload={wrong}", {"pp": STAGES})
