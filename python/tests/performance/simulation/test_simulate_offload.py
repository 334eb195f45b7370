# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Stashes in the host's memory: time and memory against closed forms."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tests.performance.simulation.hand_programs import MICRO, SYSTEM
from tests.performance.simulation.hand_stages import Sizes, stages
from tests.references import using
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schedules.offloading import absences
from tvm_distir.core.plan.schedules.pipeline_actions import BACKWARD, FORWARD
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.core.plan.schema import MeshSpec
from tvm_distir.hardware.systems.hardware import HostLink
from tvm_distir.interface.report.collect import analysis_of
from tvm_distir.interface.report.text import to_text
from tvm_distir.performance.simulation.result import Result
from tvm_distir.support.errors.tree import HardwareError, PlanError

LINKED = replace(SYSTEM, host_link=HostLink("link", 1.0))
"""A copy of 1000 bytes takes a microsecond."""


def _simulated(schedule: Schedule, sizes: Sizes, **more: Any) -> Result:
    return td.simulate(stages(schedule, sizes), LINKED, **more)


def _offloaded(kind: str, ranks: int, micros: int, chunks: int = 1) -> Schedule:
    every = tuple(range(ranks * max(chunks, 2 if kind == "zero_bubble_v" else 1)))
    return Schedule(kind, ranks, micros, chunks, offload=every)


@pytest.mark.parametrize("micros", [4, 5, 9])
@pytest.mark.parametrize("copy", [1, 3, 7, 20])
def test_copies_are_hidden_behind_a_unit_or_set_the_pace(micros: int, copy: int) -> None:
    """All forward, then all backward, on one rank: units of 3 and 3 us, or copies as they come."""
    result = _simulated(_offloaded("gpipe", 1, micros), Sizes(3, 3, kept=1000 * copy))
    hidden, paced = micros * (3 + 3), 3 + (2 * micros - 2) * copy + 3
    assert result.time_s == pytest.approx((hidden if copy <= 3 else paced) * MICRO, rel=1e-12)
    matches = {each.kind: each for each in result.collectives}
    for kind in ("store", "fetch"):
        assert (matches[kind].mesh_axis, matches[kind].count) == ("host", micros)
        assert matches[kind].bytes_per_device == 1000 * copy * micros
        assert matches[kind].time_s == pytest.approx(copy * micros * MICRO)
    exposed = result.devices[0].exposed_comm_s
    assert (exposed > 0) == (copy > 3)
    assert [e.stream for e in result.events].count("fetch") == micros


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v"])
@pytest.mark.parametrize("blocking", [False, True])
def test_both_event_loops_agree(kind: str, blocking: bool) -> None:
    schedule = _offloaded(kind, 4, 8, 2 if kind == "interleaved" else 1)
    program = stages(schedule, Sizes(3, 6, 3, kept=5000, moved=1000), summed=True)
    single = td.simulate(program, LINKED, blocking=blocking)
    with using("reference"):
        other = td.simulate(program, LINKED, blocking=blocking)
    assert (single.time_s, single.devices, single.collectives) == (
        other.time_s,
        other.devices,
        other.collectives,
    )
    assert list(single.events) == list(other.events)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_memory_falls_by_what_is_away(kind: str) -> None:
    """On the device are the stashes of the unit that runs, and of one that is on its way."""
    schedule = _offloaded(kind, 4, 8)
    sizes = Sizes(3, 6, kept=1024, weights=512)
    before = _simulated(replace(schedule, offload=()), sizes)
    result = _simulated(schedule, sizes)
    for rank, units in enumerate(schedule.orders):
        away = absences(schedule, rank)
        span = {(micro, phase): place for place, (phase, micro, _) in enumerate(units)}
        here, present = [], []
        for place in range(len(units)):
            living = [i for i in range(8) if span[i, FORWARD] <= place <= span[i, BACKWARD]]
            removed = [each for each in away if each.stored < place < each.fetched]
            remaining = [each for each in away if each.stored <= place <= each.fetched]
            here.append(len(living) - len(removed))
            present.append(len(remaining))
        lane = result.lanes[rank]
        assert lane.account.peak_bytes == 512 + 1024 * max(here)
        assert lane.account.host_bytes == 1024 * max(present)
        assert max(size for _, size in lane.memory) == lane.account.peak_bytes
        assert before.lanes[rank].account.host_bytes == 0
        if kind == "gpipe":
            assert (max(here), max(present)) == (3, 7)
            saved = before.lanes[rank].account.peak_bytes - lane.account.peak_bytes
            assert saved == 1024 * (8 - 3)


def test_a_stash_that_is_needed_soon_stays() -> None:
    schedule = _offloaded("1f1b", 2, 8)
    assert [absences(schedule, rank) for rank in range(2)] == [[], []]
    result = _simulated(schedule, Sizes(3, 6, kept=1000))
    assert result.time_s == _simulated(replace(schedule, offload=()), Sizes(3, 6, kept=1000)).time_s
    assert {each.kind for each in result.collectives} == {"send"}


def test_a_system_that_does_not_know_its_host_is_refused() -> None:
    program = stages(_offloaded("gpipe", 1, 4), Sizes(3, 6, kept=1000))
    with pytest.raises(HardwareError, match=r"DIST0704 host_link.*offload="):
        td.simulate(program, SYSTEM)
    td.simulate(program, LINKED)


def test_stages_are_checked_and_stand_in_the_plan() -> None:
    for wrong in ((0, 4), (1, 0), (1, 1)):
        with pytest.raises(PlanError, match="DIST0236 schedule/offload"):
            Schedule("1f1b", 4, 8, offload=wrong)
    schedule = Schedule("1f1b", 4, 8, offload=(0, 1))
    assert schedule.to_dict()["offload"] == [0, 1]
    assert Schedule.from_dict(schedule.to_dict()) == schedule
    plan = Plan((MeshSpec("mesh", {"dp": 2}),), schedule=schedule)
    assert Plan.from_dict(plan.to_dict()).schedule == schedule


def test_traces_show_the_copies(tmp_path: Path) -> None:
    result = _simulated(_offloaded("gpipe", 1, 4), Sizes(3, 6, kept=1000))
    result.to_hta(tmp_path)
    (page,) = tmp_path.glob("rank*.json*")
    opened = gzip.open if page.suffix == ".gz" else open
    with opened(page, "rt", encoding="utf-8") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert names.count("Memcpy DtoH (Device -> Pinned)") == 4
    assert names.count("Memcpy HtoD (Pinned -> Device)") == 4
    result.to_perfetto(tmp_path / "t.pftrace")
    data = (tmp_path / "t.pftrace").read_bytes()
    assert b"store 3" in data
    assert b"fetch 3" in data


def test_the_text_says_what_the_host_keeps() -> None:
    program = stages(_offloaded("gpipe", 1, 8), Sizes(3, 6, kept=1024))
    result = td.simulate(program, LINKED)
    text = to_text(analysis_of(result, program, LINKED, model="m", command="simulate"))
    assert "Host memory: at most 7.00 KiB per device." in text
    assert "host (link)" in text
    assert result.to_dict()["memory"][0]["host_bytes"] == 7 * 1024
