# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What rows say of a result: the resource that bounds it, and its peak, by the full account."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.performance import Result
from tvm_distir.planning.sweep import outcome
from tvm_distir.planning.sweep.configuration import Configuration
from tvm_distir.planning.sweep.outcome import BOUNDS, bound_by
from tvm_distir.planning.sweep.pipeline import ProgramPipeline

MODEL = "zoo:gpt?size=tiny,layers=4,hidden=512,seq=256,positions=256"
FACTORS = [2.0**power for power in range(-6, 7)]
"""Factors of the bandwidth of memory, from steps that it bounds to steps that it does not."""


@functools.cache
def _program(training: bool) -> td.Program:
    train = {"optimizer": "adamw"} if training else None
    pipeline = ProgramPipeline(MODEL, td.System.load("h100"), train=train)
    row = Configuration(tp=2, pp=2, dp=2, micro_batches=4) if training else Configuration(tp=2)
    return pipeline.study(row).program


def _result(training: bool, factor: float) -> Result:
    system = td.System.load("h100")
    device = system.device
    device = replace(device, memory_bandwidth_GBps=device.memory_bandwidth_GBps * factor)
    return td.simulate(_program(training), replace(system, device=device))


def _by_each_op(result: Result) -> str:
    """Return the bound by the ops of every module and pass, those of the busiest device."""
    busiest = None
    for lane in result.lanes:
        kernels = [op for op in lane.ops if op.bound_by != "network"]
        moved = sum(
            c.time_s for c in result.collectives if c.mesh == lane.mesh and c.kind != "send"
        )
        work = sum(op.time_s for op in kernels) + moved
        if busiest is None or work > busiest[0]:
            busiest = work, moved, kernels
    assert busiest is not None
    work, moved, kernels = busiest
    rest = max(result.time_s - (work - moved), 0.0)
    parts = dict.fromkeys(BOUNDS, 0.0)
    for op in kernels:
        parts[op.bound_by if op.bound_by in parts else "compute"] += op.time_s
    parts |= {"communication": min(moved, rest), "idle": rest - min(moved, rest)}
    return max(BOUNDS, key=lambda bound: parts[bound])


@pytest.mark.parametrize("training", [False, True])
def test_bounds_are_those_of_all_ops(training: bool) -> None:
    results = [_result(training, factor) for factor in FACTORS]
    bounds = [bound_by(result) for result in results]
    assert bounds == [_by_each_op(result) for result in results]
    assert len(set(bounds)) > 1


def test_single_ops_are_asked_for_only_where_titles_do_not_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    by_op = outcome._by_op

    def counted(lane: Any) -> dict[str, float]:
        asked.append(lane)
        return by_op(lane)

    monkeypatch.setattr(outcome, "_by_op", counted)
    count = 0
    for factor in FACTORS:
        result = _result(True, factor)
        bound_by(result)
        count += len(result.lanes)
    assert 0 < len(asked) < count


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("allocator", ["framework", "pytorch"])
def test_peaks_are_those_of_the_accounts(training: bool, allocator: str) -> None:
    result = td.simulate(_program(training), "h100", allocator=allocator)
    accounts = [lane.account.peak_bytes for lane in result.lanes]
    assert [lane.peak_of() for lane in result.lanes] == accounts
    assert result.peak_memory_bytes == result.fullest.peak_memory_bytes == max(accounts)
