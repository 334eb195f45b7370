# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""No step uses more FLOPs than its devices have: MFU <= HFU <= 1, whatever types products have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import tvm_distir as td
from tvm_distir.hardware import system_names
from tvm_distir.interface.report.collect import analysis_of
from tvm_distir.interface.report.figures import figures
from tvm_distir.performance import step_flops
from tvm_distir.performance.fusion.profile import profile_names
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import HardwareError, UsageError
from tvm_distir.transforms import FuseAttention

SYSTEMS = {
    str(sorted(system.device.matmul_TFLOPs.items())): system
    for system in map(td.System.load, system_names())
}
"""A system for each table of peaks."""


@pytest.fixture(scope="module")
def step() -> tuple[td.Program, object]:
    """A step that computes nearly all the time: a wide layer on one device."""
    model = td.zoo.llama(
        size="8b", layers=1, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=32000, seq=4096,
        batch=8, dtype="bfloat16",
    )  # fmt: skip
    forward = FuseAttention()(model)
    module = td.train_step(forward, optimizer="adamw", recompute="full")
    plan = make_plan(module, "data_parallel", {"dp": 1})
    return td.export(td.distribute(module, plan)), step_flops(forward, module)


@pytest.mark.parametrize("kernels", profile_names())
def test_utilization_is_at_most_one(step: tuple[td.Program, object], kernels: str) -> None:
    """And neither is zero; the peak is between those of the types of the products."""
    program, flops = step
    seen = Counter[str]()
    for system in SYSTEMS.values():
        try:
            result = td.simulate(program, system, kernels=kernels)
        except (HardwareError, UsageError) as error:
            seen[error.code] += 1
            continue
        analysis = replace(analysis_of(result, program, system, "", ""), flops=flops)
        shown = figures(analysis)
        assert shown.mfu is not None and shown.hfu is not None
        assert 0 < shown.mfu < shown.hfu <= 1, system.name
        (lane,) = result.lanes
        ideal_s = sum(n / system.peak_flops_per_s(dtype) for dtype, n in lane.products.items())
        assert analysis.hardware.peak_flops == pytest.approx(sum(lane.products.values()) / ideal_s)
        assert ideal_s <= result.time_s
        seen["simulated"] += 1
    assert seen["simulated"] or seen["DIST0152"]  # a profile of inference
