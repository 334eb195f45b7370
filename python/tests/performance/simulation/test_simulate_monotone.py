# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""No step takes longer on a system whose wires, arithmetic or latencies are better."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.nightly import nightly_but
from tests.performance.simulation.hand_crowds import crowded, pipeline
from tests.performance.simulation.hand_programs import random_program, round_system
from tests.performance.simulation.hand_stages import Sizes, stages
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.simulation.simulator import simulate

KINDS = ("gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v")


def better(rng, wires, flops, latency):
    """One of the three numbers improved."""
    choice, by = rng.randrange(3), rng.uniform(1.01, 4)
    if choice == 0:
        wires *= by
    elif choice == 1:
        flops *= by
    else:
        latency /= by
    return wires, flops, latency


def system(wires, flops, latency):
    return round_system(wires, latency, matmul_TFLOPs={"default": flops})


def crowd(wires, flops, latency):
    return crowded(wires, latency, matmul_TFLOPs={"default": flops})


def made(rng, seed):
    """A random program of two meshes, or a pipeline."""
    if seed % 5 == 0:
        return random_program(np.random.default_rng(seed))
    kind, ranks = rng.choice(KINDS), rng.randint(1, 4)
    chunks = 2 if kind == "interleaved" else 1
    schedule = Schedule(kind, ranks, ranks * rng.randint(1, 3), chunks)
    times = [rng.randint(1, 30) for _ in range(3)]
    sizes = Sizes(*times, moved=rng.randint(0, 40000))
    return stages(schedule, sizes, summed=rng.random() < 0.5)


#: The first seed of each fifty cases.
FIRST = nightly_but(range(0, 250, 50), {0})


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("blocking", [False, True])
def test_better_systems_are_no_slower(blocking, first):
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        numbers = rng.uniform(0.2, 5), rng.uniform(0.2, 5), rng.uniform(0.2, 5)
        program = made(rng, seed)
        slower = simulate(program, system(*numbers), blocking=blocking)
        faster = simulate(program, system(*better(rng, *numbers)), blocking=blocking)
        assert faster.time_s <= slower.time_s, seed


@pytest.mark.parametrize("first", FIRST)
def test_better_systems_with_contention(first):
    """Sharing has anomalies, as all that serves what is there has: a faster device may send a
    message beside one that it sent behind it before. Few steps take longer so, and little.
    """
    slower, shared = {}, 0
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        numbers = [rng.uniform(0.2, 5) for _ in range(3)]
        ranks = rng.randint(2, 4)
        times = dict(zip(("forward", "backward", "weight"), rng.choices(range(1, 31), k=3)))
        program = pipeline(
            ranks, ranks * rng.randint(1, 3), rng.choice(KINDS), dp=rng.randint(1, 3),
            payload=rng.randint(0, 200000), moved=rng.randint(0, 40000), **times,
        )  # fmt: skip
        best = better(rng, *numbers)
        before, after, alone = (
            simulate(program, crowd(*local), contention=shares).time_s
            for local, shares in ((numbers, True), (best, True), (numbers, False))
        )
        shared += before > alone
        assert before >= alone * (1 - 1e-12), seed
        if after > before:
            slower[seed] = after / before
            assert best[1] > numbers[1], f"{seed}: better wires or latencies"
    assert shared > 30
    assert len(slower) <= 2 and max(slower.values(), default=1) < 1.01, slower
