# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ZeRO in half precision against the table of its paper: weights and gradients 2, K = 12."""

from __future__ import annotations

import math

import pytest

import tvm_distir as td
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.planning.strategies.composition import make_plan

COUNTER_BYTES = 8
"""Adam's step, int64."""
LOSS_BYTES = 4
SHAPE = {"size": "tiny", "dtype": "float16", "vocab": 512}


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
    model = td.zoo.gpt(batch=8, **SHAPE)
    step = td.train_step(model, "cross_entropy", "adam", master=True)
    program = td.export(td.distribute(step, make_plan(step, strategy, {"dp": 4})))
    entry = program.entries[0]
    fn = program.functions[entry.function]
    params = [fn.values[index] for index in fn.params]
    sizes = [math.prod(v.whole_shape or ()) for v in params if v.role == "weight"]
    count = sum(sizes)
    others = [v for f in program.functions.values() for v in f.values if v.role == "constant"]
    most = RankMemories(program, CachingAllocator(program, block_bytes=1)).of(0).account.most
    assert most["weights"] - sum(v.bytes for v in others) == 2 * count // weights
    assert most["states"] - COUNTER_BYTES == 12 * count // states
    reduced = 2 * max(sizes) if gradients == 1 else 0  # of one its terms, while they are summed
    assert most["gradients"] - reduced == 2 * count // gradients


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("micro_batches", [2, 8])
@pytest.mark.parametrize(
    ("strategy", "parts"),
    [("data_parallel", 1), ("zero:stage=1", 1), ("zero:stage=2", 4), ("zero:stage=3", 4)],
)
def test_sums_over_micro_batches(
    strategy: str, parts: int, stages: int, micro_batches: int
) -> None:
    """In float32, 4 bytes a parameter, or the parts of which a device updates one.

    What a micro-batch adds is reduced to that part in the functions that make it, layer by layer:
    no phase hands on a whole gradient.
    """
    model = td.zoo.gpt(batch=4, **SHAPE)
    schedule = {"kind": "1f1b", "stages": stages, "micro_batches": micro_batches}
    step = td.train_step(model, "cross_entropy", "adam", master=True, schedule=schedule)
    text = f"pipeline:micro_batches={micro_batches}+{strategy}"
    program = td.export(td.distribute(step, make_plan(step, text, {"pp": stages, "dp": 4})))
    assert program.staged is not None
    for number, role in enumerate(program.staged.stage_kinds):
        inputs = [role.slots[s] for s in role.params]
        weights = [g for g in inputs if (g.role, g.dtype) == ("weight", "float16")]
        count = sum(math.prod(w.whole_shape or ()) for w in weights)
        sums = role.phase("accumulate")
        backward = role.phase("backward")
        assert sums is not None and backward is not None
        stored = sum(role.slots[s].bytes for s in sums.outputs)
        loss = LOSS_BYTES if number + 1 == stages else 0
        assert stored - loss == 4 * count // parts
        reduced = [op for op in program.functions[backward.function].ops if op.kind == "collective"]
        assert not reduced


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients", "states"),
    [
        ("data_parallel", 1, 1, 1),
        ("zero:stage=2", 1, 4, 4),
        ("zero:stage=3", 4, 4, 4),
    ],
)
@pytest.mark.parametrize("stages", [1, 2])
def test_bytes_per_parameter_over_micro_batches(
    strategy: str, weights: int, gradients: int, states: int, stages: int
) -> None:
    """Gradients are float32 sums, and one micro-batch's in half precision before it is added."""
    model = td.zoo.gpt(layers=2, batch=32, **SHAPE)
    schedule = {"kind": "1f1b", "stages": stages, "micro_batches": 4}
    step = td.train_step(model, "cross_entropy", "adam", master=True, schedule=schedule)
    mesh = {"pp": stages, "dp": 4} if stages > 1 else {"dp": 4}
    text = f"{strategy}+pipeline:stages={stages},micro_batches=4"
    program = td.export(td.distribute(step, make_plan(step, text, mesh)))
    staged = program.staged
    memories = RankMemories(program, CachingAllocator(program, block_bytes=1))
    most = memories.of(0).account.most
    params = [v for _, _, v in staged.inputs(0) if v.role == "weight" and v.whole_shape]
    count = sum(math.prod(v.whole_shape) for v in params)
    norms = sum(math.prod(v.whole_shape) for v in params if "ln_" in v.name)
    phases = [program.functions[p.function] for p in staged.stage_kinds[0].phases]
    called = [f for p in staged.stage_kinds[0].phases for f, _ in program.executed(p.function)]
    local = {id(f): f.values for f in (*phases, *called)}
    constants = sum(v.bytes for vs in local.values() for v in vs if v.role == "constant")
    assert most["weights"] - constants - COUNTER_BYTES == 2 * count // weights
    assert most["states"] == 12 * count // states
    loss = 2 * LOSS_BYTES if stages == 1 else 0  # of a micro-batch, and the sum
    terms = 2 * count + 2 * norms  # gradients of norms are float32
    assert most["gradients"] == (4 * count + terms) // gradients + loss
