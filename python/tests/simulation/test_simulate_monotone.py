# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""No step takes longer on a system whose wires, arithmetic or latencies are better."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hand_programs import random_program, round_system
from hand_stages import Sizes, stages

from tvm_distir.schedules import Schedule
from tvm_distir.simulation import simulate

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


@pytest.mark.parametrize("blocking", [False, True])
def test_better_systems_are_no_slower(blocking):
    """250 cases each."""
    for seed in range(250):
        rng = random.Random(seed)
        numbers = rng.uniform(0.2, 5), rng.uniform(0.2, 5), rng.uniform(0.2, 5)
        program = made(rng, seed)
        slower = simulate(program, system(*numbers), blocking=blocking)
        faster = simulate(program, system(*better(rng, *numbers)), blocking=blocking)
        assert faster.time_s <= slower.time_s, seed
