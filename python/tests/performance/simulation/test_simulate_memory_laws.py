# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Laws of memory that every program in stages obeys: roles add up, and nothing stays behind."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from tvm import ir

import tvm_distir as td
from tests.core.plan.schedules.stored_activations import in_flight
from tests.nightly import nightly_but
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.profile import Profile, profile_names
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories, RankMemory
from tvm_distir.performance.program.program import Program
from tvm_distir.planning.strategies.composition import make_plan

TRAINING = [
    name
    for name in profile_names()
    for quantization in [Profile.resolve(name).quantization]
    if quantization is None or quantization.operands != "weights"
]
"""The profiles that ship, but for those of inference with quantized weights."""
MICRO_BATCHES = (8, 12, 16)
"""So many that ranks of all but one kind of schedule hold as many activations with each."""
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "dtype": "bfloat16"},
    "gpt": {"hidden": 64, "heads": 4, "dtype": "float16", "dropout": 0.1},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "gpipe": {"kind": "gpipe"},
    "1f1b": {"kind": "1f1b"},
    "interleaved": {"kind": "interleaved", "chunks": 2},
    "zero_bubble": {"kind": "zero_bubble"},
    "zero_bubble_v": {"kind": "zero_bubble_v", "chunks": 2},
    "stash": {"kind": "1f1b", "stash": True},
}
CASES = [
    ("llama", "1f1b", "none"),
    ("llama", "gpipe", "none"),
    ("llama", "interleaved", "layer=full"),
    ("llama", "zero_bubble", "layer=core"),
    ("llama", "zero_bubble_v", "none"),
    ("llama", "stash", "none"),
    ("gpt", "1f1b", "layer=core"),
    ("gpt", "interleaved", "none"),
    ("gpt", "zero_bubble_v", "layer=checkpoint"),
]


@functools.cache
def local(model: str, schedule: str, recompute: str) -> ir.IRModule:
    """A step in two ranks of stages over two devices each, at level 5."""
    count = MICRO_BATCHES[-1]
    layers = 4 if "chunks" in SCHEDULES[schedule] else 2
    created = getattr(td.zoo, model)(layers=layers, batch=count, seq=64, vocab=128, **MODELS[model])
    message = {**SCHEDULES[schedule], "stages": 2, "micro_batches": count}
    step = td.train_step(
        created, optimizer="adamw", master=True, schedule=message, recompute=recompute
    )
    chunks = Schedule(**message).chunks
    pipeline = f"pipeline:micro_batches={count},schedule={message['kind']},chunks={chunks}"
    return td.distribute(step, make_plan(step, f"{pipeline}+megatron", {"pp": 2, "tp": 2}))


@functools.cache
def exported(model: str, schedule: str, recompute: str) -> Program:
    """Its program."""
    return td.export(local(model, schedule, recompute))


def random_program(seed: int) -> Program:
    """A pipelined step with a random model, schedule, recomputation and mesh, at random sizes."""
    rng = random.Random(seed)
    model, stages, tp = rng.choice(sorted(MODELS)), rng.choice((2, 3)), rng.choice((1, 2))
    message = {**SCHEDULES[rng.choice(sorted(SCHEDULES))], "stages": stages}
    message["micro_batches"] = count = stages * rng.randint(1, 4)
    chunks = Schedule(**message).chunks
    sizes = {
        "hidden": 16 * rng.randint(2, 6),
        "seq": 8 * rng.randint(2, 8),
        "vocab": 16 * rng.randint(2, 9),
        "layers": stages * chunks * rng.randint(1, 2),
        "batch": count * rng.randint(1, 2),
        "dtype": rng.choice(("bfloat16", "float16", "float32")),
    }
    created = getattr(td.zoo, model)(**{**MODELS[model], **sizes})
    recompute = rng.choice(("none", "layer=full", "layer=core", "layer=checkpoint"))
    optimizer, master = rng.choice(("sgd", "adamw")), sizes["dtype"] != "float32"
    step = td.train_step(
        created, optimizer=optimizer, master=master, schedule=message, recompute=recompute
    )
    pipeline = f"pipeline:micro_batches={count},schedule={message['kind']},chunks={chunks}"
    plan = make_plan(step, f"{pipeline}+megatron", {"pp": stages, "tp": tp})
    return td.export(td.distribute(step, plan))


@pytest.mark.parametrize("seed", nightly_but(range(6), {0, 1, 2}))
def test_roles_add_up_in_random_pipelined_programs(seed: int) -> None:
    """Under every kernel profile, with exact blocks and with those of a framework."""
    plain = random_program(seed)
    for profile in TRAINING:
        program = grouped(plain, profile)
        assert program.staged is not None
        for block in (1, 512):
            memories = RankMemories(program, CachingAllocator(program, block))
            accounts = [memories.of(rank).account for rank in range(program.staged.schedule.stages)]
            for account in accounts:
                assert sum(account.at_peak.values()) == account.peak_bytes > 0, profile


@functools.cache
def framework(
    case: tuple[str, str, str], profile: str, block: int
) -> tuple[Program, CachingAllocator]:
    """The step grouped into kernels, and the levels of its functions."""
    program = grouped(exported(*case), profile)
    return program, CachingAllocator(program, block)


def measured(case: tuple[str, str, str], profile: str, block: int, count: int) -> list[RankMemory]:
    """Memory of each rank with so many micro-batches of the same size."""
    program, levels = framework(case, profile, block)
    assert program.staged is not None
    schedule = replace(program.staged.schedule, micro_batches=count)
    staged = replace(program.staged, schedule=schedule)
    memories = RankMemories(program, levels, staged)
    return [memories.of(rank) for rank in range(schedule.stages)]


# Of the pairs of cases and profiles every run has a third: each case, each profile.
PAIRS = nightly_but(
    itertools.product(CASES, TRAINING),
    [
        case * len(TRAINING) + profile
        for case in range(len(CASES))
        for profile in range(case % 3, len(TRAINING), 3)
    ],
)


@pytest.mark.parametrize(("case", "profile"), PAIRS)
@pytest.mark.parametrize("block", [1, 512], ids=["exact", "framework"])
def test_roles_at_the_peak_add_up_to_it(
    case: tuple[str, str, str], block: int, profile: str
) -> None:
    for each in measured(case, profile, block, MICRO_BATCHES[0]):
        account = each.account
        assert sum(account.at_peak.values()) == account.peak_bytes == each.during.max()
        assert all(size <= account.most[role] for role, size in account.at_peak.items())


@pytest.mark.parametrize("case", [c for c in CASES if c[1] != "stash"][::3], ids="-".join)
def test_roles_of_the_storage_plan_add_up_to_its_peak(case: tuple[str, str, str]) -> None:
    whole = replace(exported(*case), storage=td.plan_storage(local(*case)))
    for lane in td.simulate(whole, "dgx-a100", allocator="tvm").lanes:
        assert sum(lane.account.at_peak.values()) == lane.account.peak_bytes > 0


@pytest.mark.parametrize(("case", "profile"), PAIRS)
def test_no_micro_batch_leaves_memory_behind(case: tuple[str, str, str], profile: str) -> None:
    """What is there after the step depends on no number of micro-batches, nor does the peak.

    The peak grows only where the schedule holds more activations at once.
    """
    staged = exported(*case).staged
    assert staged is not None
    left, peaks = [], []
    for count in MICRO_BATCHES:
        orders = replace(staged.schedule, micro_batches=count).orders
        ranks = measured(case, profile, 512, count)
        left.append([int(rank.after[-1]) for rank in ranks])
        peaks.append(
            [
                (in_flight(o), single.account.peak_bytes)
                for o, single in zip(orders, ranks, strict=True)
            ]
        )
    assert left[0] == left[1] == left[2]
    for few, some, many in zip(*peaks, strict=True):
        stored, bytes_held = zip(few, some, many, strict=True)
        steps = [(stored[k + 1] - stored[k], bytes_held[k + 1] - bytes_held[k]) for k in (0, 1)]
        assert steps[0] == steps[1]  # as many activations more, as many bytes more
        if not steps[0][0]:
            assert not steps[0][1]


@pytest.mark.parametrize(("case", "profile"), PAIRS)
def test_tensors_have_the_type_that_other_units_read(
    case: tuple[str, str, str], profile: str
) -> None:
    """Grouping ops into kernels leaves in memory what a phase hands over, not a wider value."""
    program = grouped(exported(*case), profile)
    assert program.staged is not None
    lives = CachingAllocator(program, 1).lives
    for role in program.staged.stage_kinds:
        for phase in role.phases:
            local = lives[phase.function]
            for slot, buffer in zip(phase.outputs, local.results, strict=True):
                if buffer >= local.params:
                    assert local.sizes[buffer] == role.slots[slot].bytes, role.slots[slot].name
