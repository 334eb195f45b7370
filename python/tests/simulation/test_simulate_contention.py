# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Messages and collectives of steps in stages that meet on the links of a network."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hand_crowds import crowded, pipeline
from hand_programs import Build, program, round_system
from hand_stages import Sizes, stages

from tvm_distir.errors import HardwareError, SimulationError
from tvm_distir.schedules import Schedule
from tvm_distir.simulation import simulate
from tvm_distir.system import System
from tvm_distir.system.reading import DATA

BYTES = 1_000_000
"""1000 us of one adapter."""


def events_of(result):
    return [(e.device, e.stream, e.name, e.start_s, e.duration_s) for e in result.events]


@pytest.mark.parametrize("kind", ["1f1b", "interleaved", "zero_bubble", "gpipe"])
def test_what_meets_nothing_is_as_before(kind):
    """Between two ranks, each direction of a link carries one message at a time."""
    schedule = Schedule(kind, 2, 8, 2 if kind == "interleaved" else 1)
    program = stages(schedule, Sizes(moved=5000), summed=True)
    alone = simulate(program, round_system())
    found = simulate(program, round_system(), contention=True)
    assert (found.time_s, found.collectives) == (alone.time_s, alone.collectives)
    assert events_of(found) == events_of(alone) and found.devices == alone.devices


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_sums_of_gradients_of_stages_on_one_node(engine):
    """Each of n stages sums over nodes by the one adapter: the last ends when all bytes are out."""
    for ranks in (2, 3, 4):
        program = pipeline(ranks, dp=2, payload=BYTES)
        alone = simulate(program, crowded(), engine=engine)
        found = simulate(program, crowded(), engine=engine, contention=True)
        ends = [max(e.start_s for e in lane.events() if e.name == "end") for lane in alone.lanes]
        assert alone.time_s == pytest.approx(max(ends), abs=1e-12)
        assert found.time_s == pytest.approx(min(ends) + (ranks - 1) * 1e-3, abs=1e-10)
        for device in found.devices:
            parts = device.compute_s + device.exposed_comm_s + device.idle_s
            assert parts == pytest.approx(found.time_s)
        assert max(device.comm_s for device in found.devices) > 1.9e-3


def test_one_stage_on_a_node_meets_nobody():
    made = pipeline(1, dp=2, payload=BYTES)
    alone = simulate(made, crowded())
    assert simulate(made, crowded(), contention=True).time_s == alone.time_s


def test_messages_slow_kernels_beside_them():
    """Forward units run beside the messages of those before."""
    program = stages(Schedule("gpipe", 2, 8), Sizes(forward=10, backward=10, moved=10_000))
    times = []
    for slowdown in (1.0, 1.25):
        system = replace(
            System.load("dgx-a100-megatron"),
            **{
                name: getattr(round_system(latency=0), name)
                for name in ("intra_node", "inter_node")
            },
        )
        constants = dict(system.constants)
        constants["overlap_slowdown"] = replace(constants["hop_us"], value=slowdown)
        times.append(simulate(program, replace(system, constants=constants), contention=True))
    assert times[0].time_s == simulate(program, system).time_s
    assert times[1].time_s > times[0].time_s
    assert times[1].devices[0].compute_s > times[0].devices[0].compute_s


def test_traces_have_the_times_of_the_step():
    result = simulate(pipeline(4, dp=2, payload=BYTES), crowded(), contention=True)
    ends = [sheet.end.max() for lane in result.lanes for sheet in lane.traced().sheets()]
    assert max(ends) == round(result.time_s * 1e12)
    sheet = next(s for s in result.lanes[0].traced().sheets() if s.unit == "end")
    assert (sheet.end - sheet.start).max() > 1.9e9


def test_only_steps_in_stages():
    made = program((("x",), (1,)), main=Build().param("x", 8).compute("y", "x", 1).done("y"))
    with pytest.raises(SimulationError, match="DIST0724"):
        simulate(made, crowded(), contention=True)


def test_slowdown_of_less_than_one_is_refused():
    found = {"value": 0.5, "unit": "multiple of the time", "meaning": "", "source": "none"}
    data = json.loads((DATA / "dgx-a100-megatron.json").read_text())
    data["constants"]["overlap_slowdown"] = found
    with pytest.raises(HardwareError, match="DIST0703"):
        System.from_dict(data)
