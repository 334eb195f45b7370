# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Execution traces of Chakra: played by what they say, they end when the step does."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import tvm_distir as td
from tests.performance.simulation.chakra_reader import play, read_rank
from tests.performance.simulation.hand_programs import SYSTEM, Build, program, random_program
from tests.performance.simulation.hand_stages import Sizes, stages
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.hardware.systems.hardware import HostLink
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.planning.strategies.composition import make_plan

LINKED = replace(SYSTEM, host_link=HostLink("link", 1.0))


def read(result, folder):
    result.to_chakra(folder)
    groups = json.loads((folder / "comm_group.json").read_text())
    ranks = {}
    for device in result.devices:
        ranks[device.id], local = read_rank(folder / f"trace.{device.id}.et")
        assert all(groups[each["pg_name"]] == each["ranks"] for each in local)
    return ranks, groups


def staged(kind, ranks, micros, **more):
    return stages(Schedule(kind, ranks, micros, **more), Sizes(moved=5000), summed=True)


def offloaded(kind, ranks, micros, **more):
    """Stashes wait in the host's memory; a copy takes longer than a unit."""
    chunks = more.get("chunks", 1)
    schedule = Schedule(kind, ranks, micros, offload=tuple(range(ranks * chunks)), **more)
    return stages(schedule, Sizes(moved=5000, kept=9000))


def trained():
    """A GPT's training step in two stages on four devices."""
    step = td.train_step(
        td.zoo.gpt(size="tiny", batch=2), optimizer="adam", clip=1.0,
        schedule="1f1b:stages=2,micro_batches=3",
    )  # fmt: skip
    plan = make_plan(step, "pipeline:micro_batches=3+data_parallel", {"pp": 2, "dp": 2})
    return td.export(td.distribute(step, plan))


@pytest.mark.parametrize(
    "make",
    [
        lambda: random_program(np.random.default_rng(5)),
        lambda: random_program(np.random.default_rng(9)),
        lambda: staged("1f1b", 3, 5),
        lambda: staged("gpipe", 4, 3),
        lambda: staged("interleaved", 2, 4, chunks=2),
        lambda: staged("zero_bubble", 3, 4),
        lambda: offloaded("gpipe", 2, 5),
        lambda: offloaded("1f1b", 4, 8),
        lambda: offloaded("interleaved", 2, 6, chunks=2),
        trained,
    ],
)
@pytest.mark.parametrize("blocking", [False, True])
def test_a_trace_takes_as_long_as_the_step(make, blocking, tmp_path):
    result = simulate(make(), td.System.load("dgx-a100") if make is trained else LINKED,
                      blocking=blocking)  # fmt: skip
    ranks, groups = read(result, tmp_path)
    assert play(ranks, groups) == round(result.time_s * 1e12)
    for lane in result.lanes:
        nodes = ranks[lane.devices[0]].values()
        work = sum(node.facts["duration_ps"] for node in nodes if node.kind == 4)
        assert work == sum(round(op.time_s * 1e12) for op in lane.ops)
        kernels = sum(node.facts.get("num_ops", 0) for node in nodes if node.kind == 4)
        assert kernels == sum(op.flops for op in lane.ops)
        counts = Counter(node.kind for node in nodes)
        micros = sum(node.micros for node in nodes if node.kind == 4)
        assert abs(micros - work / 1e6) <= 1 and counts[4] > 0


def test_sizes_and_groups_of_collectives(tmp_path):
    single = program(
        (("dp", "tp"), (2, 2)),
        main=Build(0).param("x", 8).collective("a", "x", "all_gather", 8, 2, (1,)).done("a"),
    )
    result = simulate(single, SYSTEM)
    ranks, groups = read(result, tmp_path)
    assert sorted(groups.values()) == [[0, 1], [2, 3]]
    (node,) = [node for node in ranks[3].values() if node.kind == 7]
    assert node.facts["comm_size"] == 4 and node.facts["comm_type"] == 2
    assert groups[node.facts["pg_name"]] == [2, 3]


def test_several_devices_send_to_one(tmp_path):
    two = program(
        (("x",), (4,)),
        (("x",), (2,)),
        main_mesh0=Build(0).param("x").transfer("s", "x", "send", 50, 1, tag=3).done("s"),
        main_mesh1=Build(1).transfer("a", "", "recv", 50, 0, tag=3).compute("c", "a", 1).done("c"),
    )
    result = simulate(two, SYSTEM)
    ranks, groups = read(result, tmp_path)
    assert play(ranks, groups) == round(result.time_s * 1e12)
    assert Counter(node.kind for node in ranks[5].values())[6] == 2
