# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The times of modules by pass: their sums, and FLOPs counted by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td

LAYERS, HIDDEN, BATCH, SEQ = 2, 512, 8, 512  # so large that to compute twice is never faster
GEMM = 2 * BATCH * SEQ * HIDDEN * HIDDEN * LAYERS  # of a projection in all layers
SIZES = {"layers": LAYERS, "hidden": HIDDEN, "heads": 4, "seq": SEQ, "vocab": 128}
SMALL = {"layers": 2, "hidden": 64, "heads": 4, "seq": 16, "vocab": 128, "batch": 8}


@pytest.mark.parametrize(
    ("strategy", "mesh", "optimizer"),
    [
        ("data_parallel", {"dp": 2}, "adamw"),
        ("fsdp", {"dp": 2}, "adamw"),
        ("megatron", {"tp": 2}, "sgd"),
        ("pipeline:micro_batches=2", {"pp": 2}, "adamw"),
        ("pipeline:micro_batches=4+data_parallel", {"pp": 2, "dp": 2}, "sgd"),
    ],
)
def test_modules_add_up_and_have_the_flops_counted_by_hand(
    strategy: str, mesh: dict[str, int], optimizer: str
) -> None:
    """The batch is that of the step, so that micro-batches and devices share the same FLOPs."""
    model = "zoo:gpt?" + ",".join(f"{name}={size}" for name, size in SIZES.items())
    train = {"optimizer": optimizer}
    result = td.analyze(
        model, batch=BATCH, system="h100", strategy=strategy, mesh=mesh, train=train
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
    model = td.zoo.gpt(**SMALL)
    result = td.analyze(
        model, system="h100", strategy="pipeline:micro_batches=2", mesh={"pp": 2}, train={}
    )
    for lane in result.simulation.lanes:
        times = {(time.module, time.phase): time.compute_s for time in lane.modules}
        assert sum(times.values()) == pytest.approx(sum(op.time_s for op in lane.ops))
        phases = [times["h.*.mlp.up_proj", phase] for phase in ("forward", "backward", "optimizer")]
        assert min(phases) > 0


def test_inference_has_a_forward_pass_only() -> None:
    model = td.zoo.gpt(**SMALL)
    result = td.analyze(model, system="h100", strategy="megatron", mesh={"tp": 2})
    (lane,) = result.simulation.lanes
    assert {time.phase for time in lane.modules} == {"forward"}
    reduced = {time.module: time.comm_s for time in lane.modules if time.comm_s}
    assert reduced["h.*.attn.o_proj"] > 0 and reduced["h.*.mlp.down_proj"] > 0


def test_a_batch_too_small_to_share_is_computed_by_each_device() -> None:
    """The all-gather of the tokens is faster here than the all-reduce of all gradients."""
    gemm = 2 * 8 * 16 * 64 * 64 * 2
    result = td.analyze(
        td.zoo.gpt(**SMALL), system="h100", strategy="data_parallel", mesh={"dp": 2}, train={}
    )
    (lane,) = result.simulation.lanes
    flops = {(time.module, time.phase): time.flops for time in lane.modules}
    assert gemm <= flops["h.*.attn.q_proj", "forward"] <= 1.02 * gemm


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_loss_reduced_together_with_a_gradient_is_forward(recompute: str) -> None:
    """A bucket joins the loss and a sum of its gradient; the forward pass stays one."""
    result = td.analyze(
        "zoo:llama?layers=2,hidden=256,heads=4,kv_heads=2,seq=256,vocab=512", batch=8,
        system="h100", strategy="megatron:sequence=true", mesh={"tp": 2},
        train={"recompute": recompute},
    )  # fmt: skip
    (lane,) = result.simulation.lanes
    flops = {(time.module, time.phase): 2 * time.flops for time in lane.modules}
    gemm, copies = 2 * 8 * 256 * 256 * 256 * 2, 3 if recompute == "full" else 2
    for name, share in (("q_proj", 1.0), ("k_proj", 0.5), ("o_proj", 1.0)):
        module = f"layers.*.self_attn.{name}"
        assert flops[module, "forward"] == pytest.approx(share * gemm, rel=0.01)
        assert flops[module, "backward"] == pytest.approx(share * gemm * copies, rel=0.01)
    assert flops["lm_head", "forward"] == pytest.approx(gemm, rel=0.03)  # and the loss


def test_pieces_of_joined_weights_that_are_split_elsewhere_have_no_module() -> None:
    """Two weights are joined and split into three pieces: no piece is one of the weights."""

    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((8, 4), "float32"),
            left: R.Tensor((4, 4), "float32"),
            right: R.Tensor((4, 8), "float32"),
        ) -> R.Tensor((8, 4), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                joined = R.concat((left, right), axis=1)
                pieces = R.split(joined, 3, axis=1)
                last = pieces[2]
                product = R.matmul(x, last)
                R.output(product)
            return product

    plan = {"strategy": "data_parallel", "mesh": {"dp": 1}}
    result = td.analyze(Module, system="h100", **plan)
    (lane,) = result.simulation.lanes
    product = 2 * 8 * 4 * 4
    assert [time.module for time in lane.modules if time.flops >= product] == [""]
