# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ZeRO in half precision against the table of its paper: weights and gradients 2, K = 12."""

from __future__ import annotations

import math

import pytest

import tvm_distir as td
from tvm_distir.simulation.memory import Framework, entry_memory
from tvm_distir.strategy import make_plan

COUNTER_BYTES = 8
"""Adam's step, int64."""


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients", "states"),
    [
        ("data_parallel", 1, 1, 1),
        ("zero:stage=1", 1, 4, 4),  # the paper's stage 1 keeps them whole
        ("zero:stage=2", 1, 4, 4),
        ("zero:stage=3", 4, 4, 4),
    ],
)
def test_bytes_per_parameter(strategy: str, weights: int, gradients: int, states: int) -> None:
    model = td.zoo.gpt(size="tiny", batch=8, dtype="float16", vocab=512)
    step = td.train_step(model, "cross_entropy", "adam", master=True)
    program = td.export(td.distribute(step, make_plan(step, strategy, {"dp": 4})))
    entry = program.entries[0]
    fn = program.functions[entry.function]
    params = [fn.values[index] for index in fn.params]
    sizes = [math.prod(v.whole_shape or ()) for v in params if v.role == "weight"]
    count = sum(sizes)
    others = [v for f in program.functions.values() for v in f.values if v.role == "constant"]
    most = entry_memory(program, entry, Framework(program, block_bytes=1)).account.most
    assert most["weights"] - sum(v.bytes for v in others) == 2 * count // weights
    assert most["states"] - COUNTER_BYTES == 12 * count // states
    reduced = 2 * max(sizes) if gradients == 1 else 0  # of one its terms, while they are summed
    assert most["gradients"] - reduced == 2 * count // gradients
