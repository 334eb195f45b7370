# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memory that PyTorch reserves: the same blocks as the live ones, in segments."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.memory.account import MemoryAccount
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.rank_events import RankEvents
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.performance.memory.reserved import Replay
from tvm_distir.performance.program.program import Program
from tvm_distir.planning.strategies.composition import make_plan

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gpipe": {"kind": "gpipe"},
    "1f1b": {"kind": "1f1b"},
    "zero_bubble": {"kind": "zero_bubble"},
}


class Counter:
    """An allocator that counts bytes, and knows which blocks are in use."""

    def __init__(self) -> None:
        self.live, self.most, self.names = dict[int, int](), 0, itertools.count()

    def take(self, size: int) -> int:
        name = next(self.names)
        self.live[name] = size
        self.most = max(self.most, sum(self.live.values()))
        return name

    def give(self, name: int) -> None:
        del self.live[name]


@functools.cache
def exported(case: str) -> Program:
    sizes: dict[str, Any] = {"hidden": 128, "heads": 4, "ffn": 256, "vocab": 256}
    model = td.zoo.llama(layers=2, batch=8, seq=64, dtype="bfloat16", kv_heads=2, **sizes)
    message = {**CASES[case], "stages": 2, "micro_batches": 4} if CASES[case] else None
    step = td.train_step(model, optimizer="adamw", master=True, schedule=message)
    mesh = {"pp": 2, "tp": 2} if message else {"tp": 2}
    words = f"pipeline:micro_batches=4,schedule={message['kind']}+" if message else ""
    return td.export(td.distribute(step, make_plan(step, f"{words}megatron", mesh)))


def replayed(program: Program, number: int, segments: Any) -> MemoryAccount:
    """Replay all events; return the account of live bytes."""
    framework = CachingAllocator(program)
    memories = RankMemories(program, framework)
    walk = RankEvents(program.as_stages, memories.stages, number, memories.steps[number])
    segments.take(sum(buffer.bytes for buffer in memories.resident(walk)))
    Replay(framework, segments).rank(memories, walk)
    return memories.of(number).account


@pytest.mark.parametrize("profile", ["eager", "megatron-lm"])
@pytest.mark.parametrize("case", CASES)
def test_a_replay_has_the_peak_of_the_account(case: str, profile: str) -> None:
    """No block is freed twice or stays behind, and the most in use is the peak to the byte."""
    program = grouped(exported(case), profile)
    for number in range(len(program.meshes) if program.staged else 1):
        counter = Counter()
        account = replayed(program, number, counter)
        assert counter.most == account.peak_bytes


@pytest.mark.parametrize("allocator", ["pytorch", "pytorch-expandable"])
@pytest.mark.parametrize("case", CASES)
def test_peak_is_reserved_memory_and_overhead(case: str, allocator: str) -> None:
    live = td.simulate(exported(case), "dgx-h100-megatron")
    whole = td.simulate(exported(case), "dgx-h100-megatron", allocator=allocator)
    assert whole.time_s == live.time_s
    for left, other in zip(live.lanes, whole.lanes, strict=True):
        parts = dict(other.account.at_peak)
        context, unused = parts.pop("context"), parts.pop("unused")
        workspace = parts.pop("workspace")
        assert workspace == 8_519_680  # what torch.cuda.memory_snapshot() shows of cuBLAS
        assert parts == left.account.at_peak
        kept = left.account.peak_bytes + unused + workspace
        assert other.account.peak_bytes == kept + context
        assert unused >= 0 < context
        assert kept % (2 << 20) == 0


def test_fits_is_decided_by_reserved_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "zoo:llama?layers=2,batch=2,seq=64,hidden=128,heads=4,kv_heads=2,ffn=256,dtype=bfloat16"
    words = ["--train", "--strategy", "megatron", "--mesh", "tp=2", "--advice", "bounds"]
    peaks = {}
    for allocator in ("framework", "pytorch"):
        page = tmp_path / f"{allocator}.html"
        inputs = ["--system", "dgx-h100-megatron", "--allocator", allocator, "--json"]
        inputs += ["--report", str(page)]
        assert main(["analyze", model, *words, *inputs]) == 0
        data = json.loads(capsys.readouterr().out)
        peaks[allocator] = data["devices"][0]["peak_memory_bytes"]
        assert data["memory"][0]["peak_bytes"] == peaks[allocator]
        assert ("The CUDA context (512 MiB)" in page.read_text()) == (allocator == "pytorch")
    assert peaks["pytorch"] > peaks["framework"] + (512 << 20)
