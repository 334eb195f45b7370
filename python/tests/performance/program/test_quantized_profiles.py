# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Products of quantized operands: their types and bytes, counted by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import tvm_distir as td
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.profile import Profile
from tvm_distir.performance.fusion.quantization import QUANTIZE
from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.program import Program
from tvm_distir.planning.sweep.sweep_driver import sweep
from tvm_distir.support.errors.tree import HardwareError, UsageError
from tvm_distir.transforms.attention.passes import FuseAttention

BATCH, SEQ, HIDDEN, FFN, HEADS, KV_HEADS = 2, 32, 64, 96, 4, 2
TOKENS, KV = BATCH * SEQ, HIDDEN * KV_HEADS // HEADS
TRAINING = ("fused-fp8", "fused-fp8-block", "fused-mxfp8", "fused-nvfp4")
WEIGHTS = ("fused:weights=int8", "fused:weights=int4")
MODEL = (
    f"zoo:llama?layers=1,seq={SEQ},hidden={HIDDEN},ffn={FFN},heads={HEADS},"
    f"kv_heads={KV_HEADS},vocab=512,dtype=bfloat16"
)
WEIGHT_SIZES = sorted([HIDDEN**2, HIDDEN * KV, HIDDEN * KV, HIDDEN**2, *[HIDDEN * FFN] * 3])
"""Elements of the weights of q, k, v and o, and of gate, up and down."""


def program(train: bool) -> Program:
    mod = FuseAttention()(td.load_model(MODEL, batch=BATCH).mod)
    step = td.train_step(mod, optimizer="adamw", master=True) if train else mod
    return td.export(td.distribute(step, td.planning.make_plan(step, "data_parallel", {"dp": 1})))


@pytest.fixture(scope="module")
def step() -> Program:
    return program(True)


@pytest.fixture(scope="module")
def inference() -> Program:
    return program(False)


def products(fn: Function) -> list[Op]:
    return [op for op in fn.ops if op.kernel_class == "matmul"]


def added(fn: Function) -> list[Op]:
    return [op for op in fn.ops if op.op == QUANTIZE]


def layer(some: Program, phase: str) -> Function:
    (name,) = (n for n in some.functions if n.startswith("layer") and n.endswith(phase))
    return some.functions[name]


@pytest.mark.parametrize("profile", TRAINING)
def test_a_forward_layer_quantizes_its_inputs_and_weights_once(step: Program, profile: str) -> None:
    """Of q, k and v one input, of gate and up one, those of o and down, and seven weights."""
    known, plain = Profile.load(profile), layer(grouped(step, "fused"), "forward")
    fn = layer(grouped(step, profile), "forward")
    chosen = known.quantization
    assert chosen is not None
    share = Fraction(chosen.bits) / 8
    sizes = sorted([*WEIGHT_SIZES, *[TOKENS * HIDDEN] * 3, TOKENS * FFN])
    assert sorted(op.bytes_read for op in added(fn)) == [2 * chosen.passes * n for n in sizes]
    assert sorted(op.bytes_written for op in added(fn)) == [2 * share * n for n in sizes]
    before, after = products(plain), products(fn)
    assert [op.flops for op in before] == [op.flops for op in after]
    assert {op.dtype for op in after} == {chosen.dtype}
    inputs = 5 * TOKENS * HIDDEN + TOKENS * HIDDEN + TOKENS * FFN
    assert sum(op.bytes_read for op in after) == share * (inputs + sum(WEIGHT_SIZES))
    assert [op.bytes_written for op in before] == [op.bytes_written for op in after]


@pytest.mark.parametrize("profile", TRAINING)
def test_a_backward_layer_quantizes_gradients_alone(step: Program, profile: str) -> None:
    """Of the results of seven products; what the forward pass has saved is quantized there."""
    fn = layer(grouped(step, profile), "backward")
    sizes = sorted([TOKENS * HIDDEN] * 3 + [TOKENS * KV] * 2 + [TOKENS * FFN] * 2)
    passes = Profile.load(profile).quantization.passes  # type: ignore[union-attr]
    assert sorted(op.bytes_read for op in added(fn)) == [2 * passes * n for n in sizes]
    assert len(products(fn)) == 14


def test_weights_that_are_gathered_in_parts_are_quantized() -> None:
    """FSDP gathers a layer at once, with the parts of its weights in a dim of their own."""
    result = td.analyze(
        MODEL, batch=24 * BATCH, train=True, strategy="fsdp", mesh={"dp": 2}, system="h100"
    )
    fns = grouped(result.program, "fused-fp8").functions.values()
    dtypes = [op.dtype for fn in fns for op in products(fn)]
    assert len(dtypes) == 3 * 7
    assert set(dtypes) == {"float8_tensor"}


def test_the_head_and_attention_keep_their_type(step: Program) -> None:
    fns = grouped(step, "fused-fp8").functions.values()
    others = {
        op.dtype
        for fn in fns
        for op in fn.ops
        if op.kernel_class in ("vocabulary", "attention", "attention_backward")
    }
    assert others == {"bfloat16"}


@pytest.mark.parametrize("profile", WEIGHTS)
def test_weights_are_read_in_fewer_bits(inference: Program, profile: str) -> None:
    """They are quantized beforehand; the arithmetic and the activations stay."""
    chosen = Profile.load(profile).quantization
    assert chosen is not None
    before, after = (layer(grouped(inference, name), "layer") for name in ("fused", profile))
    assert not added(after)
    assert {op.dtype for op in products(after)} == {"bfloat16"}
    saved = sum(op.bytes_read for op in products(before)) - sum(
        op.bytes_read for op in products(after)
    )
    assert saved == sum(2 * n - -(-n * Fraction(chosen.bits) // 8) for n in WEIGHT_SIZES)


@pytest.mark.parametrize("profile", WEIGHTS)
def test_training_on_quantized_weights_is_refused(step: Program, profile: str) -> None:
    with pytest.raises(UsageError, match=r"DIST0152 kernels.*not trained") as caught:
        td.simulate(step, "h100", kernels=profile)
    assert "fused-fp8" in str(caught.value)


@pytest.mark.parametrize(
    ("system", "profile"),
    [("a100", "fused-fp8"), ("h100", "fused-nvfp4"), ("mi300x", "fused-mxfp8")],
)
def test_a_device_without_the_type_is_refused(step: Program, system: str, profile: str) -> None:
    if system == "mi300x" and "mxfp8" in td.System.load(system).device.matmul_TFLOPs:
        pytest.skip("the device has the type")
    with pytest.raises(HardwareError, match=r"DIST0705 kernels.*bfloat16"):
        td.simulate(step, system, kernels=profile)


def test_large_products_are_faster_in_fewer_bits() -> None:
    """A step of large layers, whose products outweigh what quantizes their operands."""
    model = (
        "zoo:llama?layers=1,batch=1,seq=4096,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=512"
    )
    mod = td.load_model(f"{model},dtype=bfloat16").mod
    step = td.train_step(mod, optimizer="adamw", master=True)
    created = td.export(
        td.distribute(step, td.planning.make_plan(step, "data_parallel", {"dp": 1}))
    )
    for system, profiles in (("h100", TRAINING[:3]), ("b200", TRAINING[2:])):
        plain = td.simulate(created, system).time_s
        for profile in profiles:
            assert td.simulate(created, system, kernels=profile).time_s < plain, (system, profile)


def test_a_sweep_prices_quantized_products_as_a_simulation_does() -> None:
    system = replace(td.System.load("h100"), kernels="fused-fp8")
    grid = {"dp": ["1", "2"], "micro_batches": ["1", "2"], "micro_batch": ["2"]}
    by_template, by_row = (
        sweep(MODEL, grid, system, train={"optimizer": "adamw"}, structures=structures).to_csv()
        for structures in (True, False)
    )
    assert by_template == by_row
    wrong = replace(td.System.load("a100"), kernels="fused-fp8")
    with pytest.raises(HardwareError, match="DIST0705"):
        sweep(MODEL, grid, wrong, train={"optimizer": "adamw"})
