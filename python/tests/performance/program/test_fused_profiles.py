# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels of the profiles ``fused``, ``fused-graphs`` and ``torch-eager``, counted by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.profile import Profile
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Entry, Function, Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.support.errors.tree import HardwareError
from tvm_distir.transforms import FuseAttention

BATCH, SEQ, HIDDEN, FFN, HEADS, KV_HEADS, VOCAB = 2, 32, 64, 96, 4, 2, 512
TOKENS = BATCH * SEQ
HOST = ("host", "unit", "step")


def step_of(
    model: object, mesh: Mapping[str, int] = MappingProxyType({"dp": 1}), recompute: str = "none"
) -> Program:
    step = td.train_step(model, optimizer="adamw", master=True, recompute=recompute)
    plan = td.planning.make_plan(step, "data_parallel", dict(mesh))
    return td.export(td.distribute(step, plan))


def llama_step(recompute: str = "none") -> Program:
    sizes = {"layers": 1, "batch": BATCH, "seq": SEQ, "hidden": HIDDEN, "ffn": FFN}
    heads = {"heads": HEADS, "kv_heads": KV_HEADS, "vocab": VOCAB, "dtype": "bfloat16"}
    return step_of(td.zoo.llama(**sizes, **heads), recompute=recompute)


@pytest.fixture(scope="module")
def llama() -> Program:
    return llama_step()


@pytest.fixture(scope="module")
def gpt() -> Program:
    sizes = {"layers": 1, "batch": BATCH, "seq": SEQ, "hidden": HIDDEN, "heads": HEADS}
    return step_of(td.zoo.gpt(**sizes, vocab=VOCAB, dropout=0.1, fused_qkv=1, dtype="float16"))


def kernels(program: Program, function: str) -> list[Op]:
    ops = program.functions[function].ops
    return [op for op in ops if op.kind == "compute" and op.kernel_class not in ("view", *HOST)]


def count(program: Program, function: str) -> Counter[str]:
    return Counter(op.op for op in kernels(program, function))


def test_forward_kernels_of_a_llama_layer(llama: Program) -> None:
    """Seven products, two norms, rotary embeddings of q and k, attention, SwiGLU, residual."""
    assert count(grouped(llama, "fused"), "layer_forward") == {
        "norm": 2, "linear": 7, "rotary_embedding": 2, "softmax_attention": 1,
        "gated_activation": 1, "relax.add": 1,
    }  # fmt: skip


def test_forward_kernels_of_a_gpt_layer(gpt: Program) -> None:
    """Bias, dropout and residual run in the norm behind them, or in a kernel at the end."""
    assert count(grouped(gpt, "fused"), "layer_forward") == {
        "norm": 2, "linear": 4, "split_concat": 1, "softmax_attention": 1,
        "gated_activation": 1, "bias_dropout_residual": 1,
    }  # fmt: skip


def test_attention_takes_batched_products_only() -> None:
    """The projection behind a view is a product of its own; the profile flash takes it in."""
    shapes = [
        (1, 4, 8), (1, 8, 4), (8, 8), (1, 4, 4), (1, 4, 4), (1, 4, 8), (4, 8), (4, 8),
    ]  # fmt: skip
    values = tuple(
        Value(f"v{n}", shape, "float16", 2 * math.prod(shape)) for n, shape in enumerate(shapes)
    )

    def op(name: str, inputs: tuple[int, ...], output: int, kind: str, flops: int) -> Op:
        read = sum(values[n].bytes for n in inputs)
        return Op(
            name, "compute", f"relax.{name}", inputs, (output,), flops, read,
            values[output].bytes, True, kind, "float16",
        )  # fmt: skip

    ops = (
        op("matmul", (0, 1), 3, "matmul", 256),
        op("nn.softmax", (3,), 4, "memory", 80),
        op("matmul", (4, 0), 5, "matmul", 256),
        Op("view", "view", "relax.reshape", (5,), (6,)),
        op("matmul", (6, 2), 7, "matmul", 512),
    )
    fn = Function(0, (0, 1, 2), ops, (7,), values)
    program = Program((Mesh("mesh0", ("x",), (1,), (0,)),), {"main": fn}, (Entry(0, "main"),))
    flops = {
        profile: [op.flops for op in kernels(grouped(program, profile), "main")]
        for profile in ("fused", "flash")
    }
    assert flops == {"fused": [256 + 80 + 256, 512], "flash": [256 + 80 + 256 + 512]}


def test_backward_of_a_gated_activation_is_one_kernel(llama: Program) -> None:
    """It reads the gradient, gate, up and what the forward pass saved, and writes two gradients."""
    size = TOKENS * FFN * 2
    (op,) = (
        op for op in kernels(grouped(llama, "fused"), "layer_backward") if "activation" in op.op
    )
    assert op.bytes_written == 2 * size
    assert 3 * size <= op.bytes_read <= 4 * size + 16
    names = count(grouped(llama, "fused"), "layer_backward")
    assert names["decomposed_norm"] == names["rotary_embedding_backward"] == 2
    assert "relax.multiply" not in names
    assert "relax.add" not in names


def test_an_activation_that_is_computed_again_is_a_kernel_of_its_own() -> None:
    """The forward kernel runs again (gate, up; product); the backward kernel reads three more.

    Neither writes the activation of the gate for the other: 8 tensors move, as in frameworks.
    """
    size = TOKENS * FFN * 2
    program = grouped(llama_step("selective"), "fused")
    values = program.functions["layer_backward"].values
    matches = {
        op.op: (op.bytes_read, op.bytes_written)
        for op in kernels(program, "layer_backward")
        if op.kernel_class == "memory" and values[op.outputs[0]].shape[-1] == FFN
    }
    (read, output) = matches.pop("activation_backward")
    assert matches == {"gated_activation": (2 * size, size)}
    assert output == 2 * size
    assert 3 * size <= read <= 3 * size + 16


def test_a_product_reads_the_activation_from_memory() -> None:
    """Products compute no operand again, even where they are kernels with a bias."""
    builder, ty = relax.BlockBuilder(), relax.TensorType((TOKENS, HIDDEN), "float16")
    x, w = relax.Var("x", ty), relax.Var("w", relax.TensorType((HIDDEN, HIDDEN), "float16"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            active = builder.emit(relax.op.nn.silu(builder.emit(relax.op.matmul(x, w))))
            out = builder.emit_output(relax.op.matmul(active, w))
        builder.emit_func_output(out)
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": {"dp": 1}})
    program = grouped(td.export(td.distribute(builder.get(), plan)), "fused")
    _, silu, product = kernels(program, "main")
    assert silu.op == "gated_activation"
    assert set(silu.outputs) < set(product.inputs)


@pytest.mark.parametrize("ranks", [1, 2])
def test_cross_entropy_moves_no_logits_in_float32(ranks: int) -> None:
    """The forward kernel reads logits in bfloat16; the backward kernel reads and writes them.

    With two devices, the sum of the weights of targets is between the kernels.
    """
    sizes = {"layers": 1, "batch": BATCH * ranks, "seq": SEQ, "hidden": HIDDEN, "heads": HEADS}
    model = td.zoo.llama(**sizes, kv_heads=KV_HEADS, vocab=VOCAB, dtype="bfloat16")
    program = step_of(model, {"dp": ranks})
    logits = TOKENS * VOCAB
    masks = [n for n, v in enumerate(program.functions["main"].values) if v.dtype == "bool"]
    after = grouped(program, "fused").functions["main"].values
    large = [n for n in masks if math.prod(after[n].shape) == logits]
    assert bool(large) == (ranks > 1)  # which logit is the target's, compared inside of the kernel
    assert not any(after[n].bytes for n in large)
    fused = kernels(grouped(program, "fused"), "main")
    (forward,) = (op for op in fused if op.op == "cross_entropy")
    (backward,) = (op for op in fused if op.op == "cross_entropy_backward")
    assert forward.bytes_read == pytest.approx(2 * logits, abs=8 * TOKENS + 16)
    assert forward.bytes_written <= 8 * TOKENS + 16
    assert backward.bytes_read == pytest.approx(2 * logits, abs=16 * TOKENS + 64)
    assert backward.bytes_written == pytest.approx(2 * logits, abs=16)
    assert forward.kernel_class == backward.kernel_class == "logits"
    assert sum(op.kernel_class == "vocabulary" for op in fused) == 3
    assert sum(op.kernel_class == "logits" for op in fused) == 2


def test_torch_runs_each_gradient_as_one_kernel(llama: Program, gpt: Program) -> None:
    for model, products in ((llama, 7), (gpt, 4)):
        program = grouped(model, "torch-eager")
        backward = count(program, "layer_backward")
        assert backward["decomposed_norm"] == 2
        assert backward["softmax_backward"] == 1
        assert backward["activation_backward"] == 1
        assert not {"relax.rsqrt", "relax.mean", "relax.sum", "relax.tanh"} & set(backward)
        forward = count(program, "layer_forward")
        assert forward["linear"] == products + 2
        assert forward["relax.nn.softmax"] == 1
    assert count(grouped(llama, "torch-eager"), "layer_forward")["relax.add"] == 4


@pytest.mark.parametrize("profile", ["fused", "fused-graphs", "torch-eager"])
@pytest.mark.parametrize("model", ["llama", "gpt"])
def test_profiles_keep_the_arithmetic(
    model: str, profile: str, request: pytest.FixtureRequest
) -> None:
    """Kernels have the FLOPs of their ops, and move no more bytes than these do alone."""
    program: Program = request.getfixturevalue(model)
    result = grouped(program, profile)
    casts = ("relax.astype",)
    for name in program.functions:
        ops, fused = kernels(program, name), kernels(result, name)
        tensor = [op.flops for op in ops if op.kernel_class == "matmul"]
        assert sum(op.flops for op in fused) <= sum(op.flops for op in ops)
        least = sum(op.flops for op in ops if op.op not in casts)
        assert sum(op.flops for op in fused) >= max(0.9 * least, sum(tensor))
        moved = sum(op.bytes_read + op.bytes_written for op in fused)
        assert moved <= sum(op.bytes_read + op.bytes_written for op in ops)


def test_torch_calls_flash_attention_2() -> None:
    """Forward and backward attention have its class, which only slows down long attention."""
    model = td.zoo.llama(size="tiny", layers=1, batch=1, seq=32, dtype="bfloat16")
    step = step_of(FuseAttention()(model))
    for name in ("torch-compile", "torch-eager"):
        matches = [op for fn in grouped(step, name).functions.values() for op in fn.ops]
        assert sum(op.kernel_class == "flash_attention_2" for op in matches) == 2
    h100 = td.System.load("h100")
    flops, moved = 1e15, 1e9
    newest, torch = (
        h100.rate(kind, "bfloat16").spent_s(flops, moved).total
        for kind in ("attention", "flash_attention_2")
    )
    assert torch > newest
    assert flops / torch <= 0.35 * 989.4e12  # Shah et al. 2024: 35 % of the peak


def test_graphs_issue_nothing(gpt: Program) -> None:
    plain, replayed = grouped(gpt, "fused"), grouped(gpt, "fused-graphs")
    issued = [op for fn in plain.functions.values() for op in fn.ops if op.kernel_class == "host"]
    assert issued
    for name in gpt.functions:
        assert not any(op.kernel_class == "host" for op in replayed.functions[name].ops)
        assert kernels(plain, name) == kernels(replayed, name)


def test_a_profile_may_have_a_base() -> None:
    base, other = Profile.load("fused"), Profile.load("fused-graphs")
    assert other.rules == base.rules
    assert (base.graphs, other.graphs) == (False, True)
    local = Profile.from_dict({"schema_version": 1, "name": "x", "base": "fused", "kernels": []})
    assert local.casts
    assert not local.rules
    with pytest.raises(HardwareError) as caught:
        Profile.from_dict({"schema_version": 1, "name": "x", "base": "fusion"})
    assert caught.value.code == "DIST0703"


def test_a_rule_leaves_what_it_needs(gpt: Program) -> None:
    """A softmax is no attention where no product of the rule is near."""
    rule = {"name": "a", "anchors": ["relax.nn.softmax"], "class": "attention"}
    data = {"schema_version": 1, "name": "x", "kernels": [{**rule, "needs": ["relax.matmul"]}]}
    assert count(grouped(gpt, Profile.from_dict(data)), "layer_forward")["a"] == 0
    data["kernels"] = [rule]
    assert count(grouped(gpt, Profile.from_dict(data)), "layer_forward")["a"] == 1


@pytest.mark.parametrize(("queries", "kind"), [(1, "attention_decode"), (5, "attention")])
def test_attention_of_one_query_decodes(queries: int, kind: str) -> None:
    """Heads after positions, as in FlashAttention: (batch, positions, heads, width)."""
    shapes = [(2, queries, 4, 8), (2, 9, 4, 8), (2, 9, 4, 8), (2, queries, 4, 8)]
    values = tuple(
        Value(f"v{n}", shape, "float16", 2 * math.prod(shape)) for n, shape in enumerate(shapes)
    )
    op = Op(
        "o", "compute", "relax.dist.attention", (0, 1, 2), (3,), 1000, 1000, 100, True,
        "attention", "float16",
    )  # fmt: skip
    fn = Function(0, (0, 1, 2), (op,), (3,), values)
    program = Program((Mesh("mesh0", ("x",), (1,), (0,)),), {"main": fn}, (Entry(0, "main"),))
    for profile in ("fused", "megatron"):
        (kernel,) = kernels(grouped(program, profile), "main")
        assert kernel.kernel_class == kind
