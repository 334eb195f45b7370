# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Traces for other tools: read back by their schemas, their numbers are the result's."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest

import tvm_distir as td
from tests.performance.simulation.hand_programs import SYSTEM, Build, program, random_program
from tests.performance.simulation.hand_stages import Sizes, stages
from tests.performance.simulation.perfetto_reader import read
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.performance.traces.protobuf import padded, varint
from tvm_distir.planning.strategies.composition import make_plan


@pytest.fixture(scope="module")
def trained():
    """A GPT's training step in two stages on four devices, simulated."""
    model = td.zoo.gpt(size="tiny", batch=2)
    step = td.train_step(model, optimizer="adam", schedule="1f1b:stages=2,micro_batches=3")
    plan = make_plan(step, "pipeline:micro_batches=3+data_parallel", {"pp": 2, "dp": 2})
    return td.simulate(td.export(td.distribute(step, plan)), "dgx-a100")


def results(trained):
    yield simulate(random_program(np.random.default_rng(5)), SYSTEM)
    yield simulate(random_program(np.random.default_rng(8)), SYSTEM, fold_devices=False)
    yield simulate(stages(Schedule("1f1b", 4, 8), Sizes(moved=5000), summed=True), SYSTEM)
    yield simulate(stages(Schedule("interleaved", 2, 4, 2), Sizes(moved=7)), SYSTEM)
    yield trained


def picoseconds(time_s):
    return round(time_s * 1e12)


def test_sums_of_perfetto_are_those_of_the_result(trained, tmp_path):
    for result in results(trained):
        path = tmp_path / "t.pftrace"
        result.to_perfetto(path)
        observed = read(path.read_bytes())
        assert len(observed.pids) == len(result.lanes)
        comm = Counter()
        for lane in result.lanes:
            process = next(
                name for name, pid in observed.pids.items() if pid == lane.devices[0] + 1
            )
            ops = Counter()
            for (of, track), slices in observed.slices.items():
                if of != process:
                    continue
                for each in slices:
                    duration = each.note["duration_ps"]
                    assert (
                        abs(each.end - each.start - duration / 1000) < 1 and each.end >= each.start
                    )
                    if track == "compute":
                        ops[each.name.partition(" of ")[0]] += duration
                    elif track != "units":
                        comm[track.partition(" ")[0]] += duration
            sums = Counter()
            for op in lane.ops:
                sums[op.op] += picoseconds(op.time_s)
            assert all(ops[name] == spent_ps for name, spent_ps in sums.items())
            assert sum(ops.values()) == sum(picoseconds(op.time_s) for op in lane.ops)
        if len(result.lanes) == len({lane.mesh for lane in result.lanes}):
            sums = Counter()
            for each in result.collectives:
                sums["recv" if each.kind == "send" else "comm"] += picoseconds(each.time_s)
            assert sums["comm"] == comm["comm"] and sums["recv"] == comm["recv"]


def test_slices_of_a_track_do_not_cross(trained, tmp_path):
    for result in results(trained):
        result.to_perfetto(tmp_path / "t.pftrace")
        for slices in read((tmp_path / "t.pftrace").read_bytes()).slices.values():
            ordered = sorted(slices, key=lambda single: (single.start, single.end))
            for left, other in itertools.pairwise(ordered):
                assert left.end <= other.start


def test_units_and_memory_of_perfetto(trained, tmp_path):
    trained.to_perfetto(tmp_path / "t.pftrace")
    result = read((tmp_path / "t.pftrace").read_bytes())
    for lane in trained.lanes:
        process = next(name for name, pid in result.pids.items() if pid == lane.devices[0] + 1)
        units = {(each.name, each.start, each.end) for each in result.slices[process, "units"]}
        events = [event for event in lane.events() if event.stream == "compute"]
        assert len(result.slices[process, "units"]) == len(events)
        for event in events:
            start = picoseconds(event.start_s)
            end = start + picoseconds(event.duration_s)
            assert any(
                name in event.args["binding"]
                and begin == start // 1000
                and abs(last - end / 1000) < 2
                for name, begin, last in units
            )
        counter = result.counters[process, "live memory"]
        assert [size for _, size in counter] == [size for _, size in lane.memory]


def test_arrows_go_from_sends_to_receives(trained, tmp_path):
    two = program(
        (("x",), (1,)),
        (("x",), (1,)),
        main_mesh0=Build(0).param("x").transfer("s", "x", "send", 50, 1, tag=3).done("s"),
        main_mesh1=Build(1).transfer("a", "", "recv", 50, 0, tag=3).compute("c", "a", 1).done("c"),
    )
    for result in (simulate(two, SYSTEM), trained):
        result.to_perfetto(tmp_path / "t.pftrace")
        begins, ends = {}, {}
        for (_, track), slices in read((tmp_path / "t.pftrace").read_bytes()).slices.items():
            for each in slices:
                assert bool(each.begins) == (track == "send")
                assert bool(each.ends) == track.startswith("recv")
                begins.update(dict.fromkeys(each.begins, each))
                ends.update(dict.fromkeys(each.ends, each))
        assert begins.keys() == ends.keys() and begins
        assert all(begins[key].start <= ends[key].end for key in begins)


def test_the_same_bytes_every_time(trained, tmp_path):
    for name in ("a.pftrace", "b.pftrace"):
        trained.to_perfetto(tmp_path / name)
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.pftrace").read_bytes()


def test_padded_varints():
    values = np.array([0, 1, 127, 128, 300, (1 << 28) - 1, 1 << 28, (1 << 56) - 1])
    for value, word in zip(values.tolist(), padded(values).tolist(), strict=True):
        groups = [word >> 8 * k & 127 for k in range(8)]
        assert sum(group << 7 * k for k, group in enumerate(groups)) == value
    assert varint(-1) == b"\xff" * 9 + b"\x01"


def test_hta_is_told_the_communication_share(trained, tmp_path):
    """HTA merges the intervals of kernels by what they are called; so does this test."""
    for result in results(trained):
        for path in tmp_path.iterdir():
            path.unlink()
        result.to_hta(tmp_path)
        assert len(list(tmp_path.iterdir())) == len(result.devices)
        for device in result.devices:
            data = json.loads((tmp_path / f"rank{device.id}.json").read_text())
            assert data["distributedInfo"]["rank"] == device.id
            kernels = [e for e in data["traceEvents"] if e["cat"] == "kernel"]
            assert {e["pid"] for e in kernels} <= {device.id}
            launches = {
                e["args"]["correlation"] for e in data["traceEvents"] if e["cat"] == "cuda_runtime"
            }
            assert launches == {e["args"]["correlation"] for e in kernels}
            spans = {True: [], False: []}
            for event in kernels:
                start = round(event["ts"] * 1e6)
                end = start + round(event["dur"] * 1e6)
                spans[event["name"].startswith("ncclDevKernel_")].append((start, end))
            comm, compute = covered(spans[True]), covered(spans[False])
            both = comm + compute - covered(spans[True] + spans[False])
            assert compute == picoseconds(device.compute_s) and comm == picoseconds(device.comm_s)
            assert comm - both == picoseconds(device.exposed_comm_s)


def covered(spans):
    """Length of what intervals cover together."""
    total, until = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total
