# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The times of modules by pass: their sums, and FLOPs counted by hand."""

from __future__ import annotations

from collections import Counter

import pytest

import tvm_distir as td

LAYERS, HIDDEN, BATCH, SEQ = 2, 64, 8, 16
GEMM = 2 * BATCH * SEQ * HIDDEN * HIDDEN * LAYERS  # of a projection in all layers


@pytest.mark.parametrize(
    ("strategy", "mesh", "optimizer"),
    [
        ("fsdp", {"dp": 2}, "adamw"),
        ("megatron", {"tp": 2}, "sgd"),
    ],
)
def test_modules_add_up_and_have_the_flops_counted_by_hand(
    strategy: str, mesh: dict[str, int], optimizer: str
) -> None:
    model = td.zoo.gpt(layers=LAYERS, hidden=HIDDEN, heads=4, seq=SEQ, vocab=128, batch=BATCH)
    result = td.analyze(
        model, system="h100", strategy=strategy, mesh=mesh, train={"optimizer": optimizer}
    )
    lanes = result.simulation.lanes
    flops, seconds = Counter[tuple[str, str]](), Counter[str]()
    for lane in lanes:
        kernels = sum(op.time_s for op in lane.ops)
        assert sum(time.compute_s for time in lane.modules) == pytest.approx(kernels)
        for time in lane.modules:
            flops[time.module, time.phase] += time.flops * len(lane.devices)
            seconds[time.phase] += time.compute_s
    assert sum(flops.values()) == sum(device.flops for device in result.simulation.devices)
    for name in ("attn.q_proj", "attn.o_proj"):
        module = f"h.*.{name}"
        assert GEMM <= flops[module, "forward"] <= 1.02 * GEMM  # and the bias
        assert 2 * GEMM <= flops[module, "backward"] <= 2.05 * GEMM
    assert GEMM * 4 <= flops["h.*.mlp.up_proj", "forward"] <= 1.02 * GEMM * 4
    assert flops["h.*.attn", "forward"] > 0  # attention itself has no weight
    assert all(seconds[phase] > 0 for phase in ("forward", "backward", "optimizer"))


def test_modules_of_a_pipeline_add_up() -> None:
    model = td.zoo.gpt(layers=LAYERS, hidden=HIDDEN, heads=4, seq=SEQ, vocab=128, batch=BATCH)
    result = td.analyze(
        model, system="h100", strategy="pipeline:micro_batches=2", mesh={"pp": 2}, train={}
    )
    for lane in result.simulation.lanes:
        times = {(time.module, time.phase): time.compute_s for time in lane.modules}
        assert sum(times.values()) == pytest.approx(sum(op.time_s for op in lane.ops))
        phases = [times["h.*.mlp.up_proj", phase] for phase in ("forward", "backward", "optimizer")]
        assert min(phases) > 0


def test_inference_has_a_forward_pass_only() -> None:
    model = td.zoo.gpt(layers=LAYERS, hidden=HIDDEN, heads=4, seq=SEQ, vocab=128, batch=BATCH)
    result = td.analyze(model, system="h100", strategy="megatron", mesh={"tp": 2})
    (lane,) = result.simulation.lanes
    assert {time.phase for time in lane.modules} == {"forward"}
    reduced = {time.module: time.comm_s for time in lane.modules if time.comm_s}
    assert reduced["h.*.attn.o_proj"] > 0 and reduced["h.*.mlp.down_proj"] > 0
