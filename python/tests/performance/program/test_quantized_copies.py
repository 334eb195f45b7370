# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memory of training steps with quantized products, against bytes that are counted by hand."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import pytest

import tvm_distir as td
from tvm_distir.performance.fusion import grouped as grouped_module
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.profile import Profile
from tvm_distir.performance.fusion.quantization import QUANTIZE
from tvm_distir.performance.fusion.quantized_copies import with_quantized_copies
from tvm_distir.performance.memory.account import MemoryAccount
from tvm_distir.performance.program.program import Program
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.attention.passes import FuseAttention

ROWS, SEQ, HIDDEN, FFN, HEADS, KV_HEADS = 4, 32, 64, 96, 4, 2
"""Rows of the batch that a device, or a micro-batch, has."""
INPUT, KV, BLOCK = ROWS * SEQ * HIDDEN, HIDDEN * KV_HEADS // HEADS, 512
WEIGHT_SIZES = [HIDDEN**2, HIDDEN * KV, HIDDEN * KV, HIDDEN**2, *[HIDDEN * FFN] * 3]
"""Elements of the weights of q, k, v and o, and of gate, up and down."""
PROFILES = [("fused-fp8", "h100"), ("fused-mxfp8", "b200"), ("fused-nvfp4", "b200")]


@functools.cache
def step(strategy: str, axes: str, recompute: str = "none", kind: str = "") -> Program:
    """A step of a Llama, in two stages and as many micro-batches where a schedule is named."""
    mesh = {name: int(size) for name, size in (each.split("=") for each in axes.split(","))}
    batch = ROWS * mesh.get("dp", 1)
    model = td.zoo.llama(
        layers=2 if kind else 1, batch=batch, seq=SEQ, vocab=128, hidden=HIDDEN, ffn=FFN,
        heads=HEADS, kv_heads=KV_HEADS, dtype="bfloat16",
    )  # fmt: skip
    schedule = {"kind": kind, "stages": 2, "micro_batches": 2} if kind else None
    mod = td.train_step(
        FuseAttention()(model), optimizer="adamw", master=True, recompute=recompute,
        schedule=schedule,
    )  # fmt: skip
    return td.export(td.distribute(mod, make_plan(mod, strategy, mesh)))


def accounts(program: Program, system: str, profile: str) -> list[MemoryAccount]:
    result = td.simulate(program, system, kernels=profile)
    found = [lane.account for lane in result.lanes]
    assert all(sum(account.at_peak.values()) == account.peak_bytes for account in found)
    return found


def blocks(size: Fraction | int) -> int:
    return math.ceil(Fraction(math.ceil(size), BLOCK)) * BLOCK


def share(profile: str) -> Fraction:
    """Bytes of a quantized element."""
    chosen = Profile.load(profile).quantization
    assert chosen is not None
    return Fraction(chosen.bits) / 8


def saved_less(profile: str, hidden_inputs: int = 2, tp: int = 1) -> int:
    """Bytes that a layer saves less, by the layout.

    The inputs of q, k, v and of gate, up are copies, of which a device has ``hidden_inputs`` / 2;
    and so is that of down. That of o is saved besides for the gradient of attention.
    """
    one = share(profile)
    part = INPUT * hidden_inputs // 2
    ffn, mixed = ROWS * SEQ * FFN // tp, INPUT // tp
    narrowed = [part, part, ffn]
    return sum(blocks(2 * n) - blocks(one * n) for n in narrowed) - blocks(one * mixed)


@pytest.mark.parametrize(("profile", "system"), PROFILES)
@pytest.mark.parametrize("strategy", ["data_parallel", "fsdp"])
def test_saved_inputs_and_weights_are_counted_by_hand(
    strategy: str, profile: str, system: str
) -> None:
    """Weights that are there all the time have two copies; gathered ones only in their layer."""
    program = step(strategy, "dp=2")
    (plain,), (narrow,) = (accounts(program, system, name) for name in ("fused", profile))
    assert plain.most["stashes"] - narrow.most["stashes"] == saved_less(profile)
    copies = sum(blocks(2 * share(profile) * n) for n in WEIGHT_SIZES) if strategy != "fsdp" else 0
    assert narrow.most["weights"] - plain.most["weights"] == copies
    assert plain.most["states"] == narrow.most["states"]


DELAYED = "fused-fp8-delayed"


def test_weights_of_delayed_scaling_are_their_two_copies() -> None:
    """Two copies of 8 bits have the bytes of the 16-bit weight, and no kernel makes them again."""
    program = step("data_parallel", "dp=2")
    (plain,), (narrow,) = (accounts(program, "h100", name) for name in ("fused", DELAYED))
    assert narrow.most["weights"] == plain.most["weights"]
    assert plain.most["stashes"] - narrow.most["stashes"] == saved_less("fused-fp8")
    made = [op for fn in grouped(program, DELAYED).functions.values() for op in fn.ops
            if op.op == QUANTIZE]  # fmt: skip
    inputs, results = [INPUT] * 3 + [ROWS * SEQ * FFN], [INPUT] * 3 + [ROWS * SEQ * FFN] * 2
    gradients = [*results, *[ROWS * SEQ * HIDDEN * KV_HEADS // HEADS] * 2]
    # The values of former steps set the scales: 16 bits are read once, and two copies written.
    assert sorted(op.bytes_read for op in made) == sorted(2 * n for n in inputs + gradients)
    assert sorted(op.bytes_written for op in made) == sorted(2 * n for n in inputs + gradients)


def test_weights_that_an_optimizer_reads_have_copies_beside_them() -> None:
    """Without a master copy in float32 the update needs the weight in 16 bits."""
    model = td.zoo.llama(
        layers=1, batch=ROWS, seq=SEQ, vocab=128, hidden=HIDDEN, ffn=FFN, heads=HEADS,
        kv_heads=KV_HEADS, dtype="bfloat16",
    )  # fmt: skip
    mod = td.train_step(FuseAttention()(model), optimizer="adamw")
    program = td.export(td.distribute(mod, make_plan(mod, "data_parallel", {"dp": 1})))
    (plain,), (narrow,) = (accounts(program, "h100", name) for name in ("fused", DELAYED))
    copies = sum(blocks(2 * n) for n in WEIGHT_SIZES)
    assert narrow.most["weights"] - plain.most["weights"] == copies


def test_a_gathered_weight_of_delayed_scaling_is_sent_once_and_transposed() -> None:
    """FSDP: the gather of a weight sends 8 bits, and a kernel behind it makes the other copy."""
    program = step("fsdp", "dp=2")
    plain, narrow = (grouped(program, name).functions for name in ("fused", DELAYED))
    half = 0
    for name, fn in narrow.items():
        gathers = (
            [op for op in each[name].ops if op.collective == "all_gather"]
            for each in (plain, narrow)
        )
        pairs = zip(*gathers, strict=True)
        for wide, less in pairs:
            if less.payload_bytes != wide.payload_bytes:
                half += 1
                assert 2 * less.payload_bytes == wide.payload_bytes in {2 * n for n in WEIGHT_SIZES}
        for op in fn.ops:
            if op.name.endswith("_transposed"):
                half -= 1
                assert op.bytes_read == op.bytes_written in WEIGHT_SIZES
    assert half == 0
    assert any(op.name.endswith("_transposed") for fn in narrow.values() for op in fn.ops)


def test_shards_of_a_sequence_are_saved_as_copies() -> None:
    """Each device saves its half of the inputs that it gathers, and quantizes what it gathered."""
    program = step("megatron:sequence=1", "tp=2")
    (plain,), (narrow,) = (accounts(program, "h100", name) for name in ("fused", "fused-fp8"))
    less = saved_less("fused-fp8", hidden_inputs=1, tp=2)
    assert plain.most["stashes"] - narrow.most["stashes"] == less
    backward = next(fn for n, fn in grouped(program, "fused-fp8").functions.items()
                    if n.startswith("layer") and n.endswith("backward"))  # fmt: skip
    assert sum(op.op == QUANTIZE for op in backward.ops) == 7  # gradients of seven outputs


@pytest.mark.parametrize("kind", ["1f1b", "zero_bubble"])
def test_each_micro_batch_in_flight_has_copies(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage has two micro-batches in flight, with a layer each."""
    monkeypatch.setattr("tvm_distir.performance.memory.account.NAMED", 99)
    program = step(f"pipeline:micro_batches=2,schedule={kind},chunks=1", "pp=2", kind=kind)
    plain, narrow = (accounts(program, "h100", name) for name in ("fused", "fused-fp8"))
    assert plain[0].most["stashes"] - narrow[0].most["stashes"] == 2 * saved_less("fused-fp8")
    copies = sum(2 * n for n in WEIGHT_SIZES)
    assert [b.most["weights"] - a.most["weights"] for a, b in zip(plain, narrow, strict=True)] == [
        copies,
        copies,
    ]
    names = [holder.what for holder in narrow[0].holders]
    assert "layers.0 gated_activation output (4, 32, 96) bfloat16 (float8 copy)" in names
    assert "layers.0.mlp.down_proj.weight copies (float8)" in names
    if kind == "zero_bubble":  # both its operands have been quantized before
        fns = grouped(program, "fused-fp8").functions
        (second,) = (fn for name, fn in fns.items() if name.startswith("layer_backward_weights"))
        assert not any(op.op == QUANTIZE for op in second.ops)


def test_copies_never_add_to_activations_of_llama() -> None:
    """Whatever is recomputed; where all is, layers save their inputs, which stay."""
    for recompute in ("none", "layer=full"):
        program = step("fsdp", "dp=2", recompute=recompute)
        plain, narrow = (
            accounts(program, "h100", name)[0].most["stashes"] for name in ("fused", "fused-fp8")
        )
        assert narrow <= plain
        assert (narrow == plain) == (recompute == "layer=full")


def test_products_of_gathered_weights_are_quantized_and_those_of_logits_are_not() -> None:
    """In a step of FSDP, which gathers weights in buckets and exchanges logits."""
    program = td.analyze(
        f"zoo:llama?layers=1,seq={SEQ},hidden={HIDDEN},ffn={FFN},heads=4,kv_heads=2,vocab=512,"
        "dtype=bfloat16",
        strategy="fsdp", mesh={"dp": 2}, system="h100", kernels="fused-fp8", batch=4,
        train={"optimizer": "adamw"},
    ).program  # fmt: skip
    fns = grouped(program, "fused-fp8").functions
    types = {
        name: [op.dtype for op in fn.ops if op.kernel_class in ("matmul", "vocabulary")]
        for name, fn in fns.items()
    }
    chosen = Profile.load("fused-fp8").quantization
    assert chosen is not None
    assert types["layer_forward"] == [chosen.dtype] * 7
    assert types["layer_backward"] == [chosen.dtype] * 14
    assert types["main"] == ["bfloat16"] * 3


@pytest.mark.parametrize(("profile", "system"), PROFILES[::2])
@pytest.mark.parametrize(
    ("strategy", "axes"), [("zero:stage=3", "dp=2"), ("megatron:sequence=1", "tp=2")]
)
def test_programs_with_copies_are_programs_whose_products_have_their_shapes(
    monkeypatch: pytest.MonkeyPatch, strategy: str, axes: str, profile: str, system: str
) -> None:
    """What is read exists, views change shapes and nothing else, and other ops stay."""
    seen: list[Program] = []

    def noting(program: Program, chosen: Profile) -> Program:
        seen.extend((program, with_quantized_copies(program, chosen)))
        return seen[-1]

    monkeypatch.setattr(grouped_module, "with_quantized_copies", noting)
    grouped(step(strategy, axes), profile)
    plain, program = seen
    program.check()
    assert program != plain
    for name, fn in program.functions.items():
        before = plain.functions[name]
        shapes = {
            op.name: {before.values[v].shape for v in op.inputs}
            for op in before.ops
            if op.kernel_class == "matmul"
        }
        for op in fn.ops:
            ends = [fn.values[v] for v in (*op.inputs, *op.outputs)]
            if op.kernel_class == "matmul" and op.name in shapes:
                assert {fn.values[v].shape for v in op.inputs} == shapes[op.name]
            if op.op == "relax.reshape" and op not in before.ops:
                assert ends[0].bytes == ends[1].bytes and ends[0].shape != ends[1].shape
            if op.op == QUANTIZE and op.outputs:  # those of cached weights are parameters
                assert ends[1].shape == ends[0].shape  # others may be those of its shard
                assert all(copy.bytes < ends[0].bytes for copy in ends[1:])
        made = {v for op in fn.ops for v in op.outputs}
        assert len(made) == sum(len(op.outputs) for op in fn.ops)
        assert made.isdisjoint(fn.params)
