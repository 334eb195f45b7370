# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients that a backward pass adds to their sums are not held until the micro-batch ends."""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Iterator
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.memory.account import MemoryAccount
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import ACCUMULATE
from tvm_distir.planning.strategies.composition import make_plan

COUNT, BLOCK = 4, 512
SUM_BYTES = {"megatron-lm": 4, "megatron": 2, "flash": 4}
"""Bytes of an element of a sum, by profile."""
CASES = {
    "stages": (2, "megatron", {"pp": 2, "tp": 2}),
    "accumulation": (1, "megatron", {"pp": 1, "tp": 2}),
    "data": (1, "data_parallel", {"pp": 1, "dp": 2}),
}


@functools.cache
def exported(case: str) -> Program:
    """A step whose weights take more memory than its activations."""
    stages, inside, mesh = CASES[case]
    sizes: dict[str, Any] = {"hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 64}
    model = td.zoo.llama(layers=4, batch=2 * COUNT, seq=16, dtype="bfloat16", **sizes)
    schedule = {"kind": "1f1b", "stages": stages, "micro_batches": COUNT}
    step = td.train_step(model, optimizer="adamw", master=True, schedule=schedule)
    plan = make_plan(step, f"pipeline:micro_batches={COUNT}+{inside}", mesh)
    return td.export(td.distribute(step, plan))


def measured(case: str, profile: str) -> Iterator[tuple[MemoryAccount, list[int], int]]:
    """The account of each rank, the elements of its sums, and the bytes that are always there."""
    program = grouped(exported(case), profile)
    staged = program.staged
    assert staged is not None
    memories = RankMemories(program, CachingAllocator(program, BLOCK))
    for rank in range(staged.schedule.stages):
        role = staged.stage_kind_of(rank)
        phase = role.phase(ACCUMULATE)
        assert phase is not None
        shapes = (role.slots[slot].shape for slot in phase.outputs)
        sizes = [math.prod(shape) for shape in shapes if shape]  # not the loss
        memory = memories.of(rank)
        yield memory.account, sizes, memory.resident_bytes


@pytest.mark.parametrize("profile", SUM_BYTES)
@pytest.mark.parametrize("case", CASES)
def test_gradients_take_the_memory_of_their_sums(case: str, profile: str) -> None:
    """Beside the sums lies one gradient at most, and a reduction works in their memory."""
    for account, counts, resident in measured(case, profile):
        sums = [-(-count * SUM_BYTES[profile] // BLOCK) * BLOCK for count in counts]
        scalars = BLOCK * 8  # the loss and what depends on it
        assert sum(sums) <= account.most["gradients"] <= sum(sums) + max(sums) + scalars
        assert sum(account.at_peak.values()) == account.peak_bytes
        # Weights in half precision, and in float32 the master copy, both moments and the sum.
        assert resident >= sum(counts) * (2 + 12 + SUM_BYTES[profile])


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_other_profiles_wait_for_their_sums(case: str) -> None:
    """Where sums are kernels of their own, the memory is that of the program as written."""
    for account, counts, _ in measured(case, "eager"):
        assert account.most["gradients"] >= sum(counts) * (4 + 2)


@pytest.mark.parametrize("system", ["dgx-b200-megatron", "dgx-a100-megatron"])
def test_peak_of_a_sweep_is_flat_in_micro_batches(
    system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Grouped-query attention in half precision; only the data of the step grow, as int32."""
    seq, counts = 64, (4, 32, 128)
    model = f"zoo:llama?layers=2,seq={seq},hidden=64,heads=4,kv_heads=2,ffn=96,dtype=bfloat16"
    words = ["--train", "--optimizer", "adamw", "--master", "--system", system, "--row-by-row"]
    grid = ["--grid", "dp=2", "--grid", f"micro_batches={','.join(map(str, counts))}"]
    assert main(["sweep", model, *words, *grid]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    peaks = {int(row["micro_batches"]): int(row["peak_memory_bytes"]) for row in rows}
    data = {count: 2 * count * seq * 4 for count in counts}
    assert len({peaks[count] - data[count] for count in counts}) == 1
