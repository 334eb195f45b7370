# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Messages and collectives of steps in stages that meet on the links of a network."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.performance.simulation.hand_crowds import crowded, pipeline
from tests.performance.simulation.hand_programs import Build, program, round_system
from tests.performance.simulation.hand_stages import Sizes, stages
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_reader import DATA
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.support.errors.tree import HardwareError, SimulationError

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
    result = simulate(program, round_system(), contention=True)
    assert (result.time_s, result.collectives) == (alone.time_s, alone.collectives)
    assert events_of(result) == events_of(alone) and result.devices == alone.devices


def test_sums_of_gradients_of_stages_on_one_node(kernels):
    """Each of n stages sums over nodes by the one adapter: the last ends when all bytes are out."""
    for ranks in (2, 3, 4):
        program = pipeline(ranks, dp=2, payload=BYTES)
        alone = simulate(program, crowded())
        result = simulate(program, crowded(), contention=True)
        ends = [max(e.start_s for e in lane.events() if e.name == "end") for lane in alone.lanes]
        assert alone.time_s == pytest.approx(max(ends), abs=1e-12)
        assert result.time_s == pytest.approx(min(ends) + (ranks - 1) * 1e-3, abs=1e-10)
        for device in result.devices:
            parts = device.compute_s + device.exposed_comm_s + device.idle_s
            assert parts == pytest.approx(result.time_s)
        assert max(device.comm_s for device in result.devices) > 1.9e-3


def test_one_stage_on_a_node_meets_nobody():
    created = pipeline(1, dp=2, payload=BYTES)
    alone = simulate(created, crowded())
    assert simulate(created, crowded(), contention=True).time_s == alone.time_s


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


def anomaly():
    """Two stages on two nodes: the second sums gradients and updates weights for long, while the
    first goes backward and sums its own. Nothing else takes time; updates only read.
    """
    created = stages(Schedule("1f1b", 2, 1), Sizes(forward=0, backward=0))
    functions = dict(created.functions)
    for name, fn in created.functions.items():
        build = Build()
        for index in fn.params:
            build.param(fn.values[index].name, fn.values[index].bytes)
        if name == "first.backward":
            build.compute("work", "kept grad", 10).compute("dx_made", "work", 0)
            functions[name] = build.done("dx_made")
        elif name.endswith(".end"):
            bytes_read = 20_000_000 if name == "last.end" else 0
            build.collective("summed", "sum", "all_reduce", BYTES // 100, 2)
            build.compute("new_made", "summed", 0, bytes_read=bytes_read)
            functions[name] = build.done("new_made")
    meshes = tuple(Mesh(f"rank{r}", ("dp",), (2,), (r, 4 + r)) for r in range(2))
    result = replace(created, meshes=meshes, functions=functions)
    result.check()
    return result


def test_faster_arithmetic_may_make_sums_meet(kernels):
    """Sums of 10 us each, of the last stage from 0 us, of the first one from its backward part of
    10 us at speed 1: there they do not meet, and the last stage's update of 20 us ends at 30 us.
    At speed s the first sum has ``10 - 10 / s`` us left when the second one comes, which take
    twice as long: it ends at ``20 - 10 / s``. Faster wires only part them.
    """
    program = anomaly()
    for speed in (0.25, 0.5, 1.0, 1.25, 2.0, 4.0, 10.0):
        system = crowded(matmul_TFLOPs={"default": speed})
        alone = simulate(program, system)
        result = simulate(program, system, contention=True)
        summed = 10 if speed <= 1 else 20 - 10 / speed
        first = 10 / speed + 10
        assert alone.time_s == pytest.approx(1e-6 * max(30, first), abs=1e-12)
        assert result.time_s == pytest.approx(1e-6 * max(summed + 20, first), abs=1e-12)
    for wires in (1.0, 1.25, 2.0, 4.0):
        result = simulate(program, crowded(wires), contention=True)
        assert result.time_s == pytest.approx(1e-6 * (10 / wires + 20), abs=1e-12)


def test_traces_have_the_times_of_the_step():
    result = simulate(pipeline(4, dp=2, payload=BYTES), crowded(), contention=True)
    ends = [sheet.end.max() for lane in result.lanes for sheet in lane.traced().sheets()]
    assert max(ends) == round(result.time_s * 1e12)
    sheet = next(s for s in result.lanes[0].traced().sheets() if s.unit == "end")
    assert (sheet.end - sheet.start).max() > 1.9e9


def test_only_steps_in_stages():
    created = program((("x",), (1,)), main=Build().param("x", 8).compute("y", "x", 1).done("y"))
    with pytest.raises(SimulationError, match="DIST0724"):
        simulate(created, crowded(), contention=True)


def test_slowdown_of_less_than_one_is_refused():
    matches = {"value": 0.5, "unit": "multiple of the time", "meaning": "", "source": "none"}
    data = json.loads((DATA / "dgx-a100-megatron.json").read_text())
    data["constants"]["overlap_slowdown"] = matches
    with pytest.raises(HardwareError, match="DIST0703"):
        System.from_dict(data)
