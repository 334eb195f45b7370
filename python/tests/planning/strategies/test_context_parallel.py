# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Context parallel: what a layer sends in each form, and that the results are one device's."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from tvm import ir, relax

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.core.ir.attributes.keys import INPUTS_ATTR
from tvm_distir.core.plan.plan import Plan
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import LoweringError, MeshError, PlanError
from tvm_distir.transforms import FuseAttention

SMALL = {"size": "tiny", "layers": 1, "hidden": 16, "heads": 4, "vocab": 64, "batch": 2, "seq": 32}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {**SMALL, "positions": 64},
    "llama": {**SMALL, "kv_heads": 2, "ffn": 32},
    "bert": {**SMALL, "positions": 64},
}


def model(name: str, **options: Any) -> ir.IRModule:
    return td.zoo.build(name, {**MODELS[name], **options})


def traffic(dist: ir.IRModule, least_ndim: int = 3) -> Counter[str]:
    """Bytes that a device sends on a ring for activations, by kind."""
    program = td.export(dist)
    matches: Counter[str] = Counter()
    for function, op in program.executed(program.entries[0].function):
        value = function.values[op.outputs[0]] if op.outputs else None
        if op.kind != "collective" or value is None or "float" not in value.dtype:
            continue
        n, b = op.group_size, op.payload_bytes
        if len(value.shape) >= least_ndim:
            sent = {"all_reduce": 2 * (n - 1) * b / n, "reduce_scatter": (n - 1) * b}
            sent["collective_permute"] = b
            matches[op.collective] += round(sent.get(op.collective, (n - 1) * b / n))
    return matches


def per_layer(
    name: str, form: str, n: int, recompute: str | None = None, **options: Any
) -> Counter[str]:
    """What one more layer sends."""
    matches = []
    for layers in (2, 3):
        mod = model(name, layers=layers, **options)
        if recompute is not None:
            fused = FuseAttention()(mod)
            mod = td.train_step(fused, optimizer="sgd", rate=1.0, recompute=recompute)
        plan = strategy.make_plan(mod, f"context_parallel:form={form}", {"cp": n})
        matches.append(traffic(td.distribute(mod, plan)))
    matches[1].subtract(matches[0])
    return +matches[1]


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("name", ["gpt", "bert", "llama"])
def test_what_a_layer_sends(name: str, n: int) -> None:
    """The formulas of docs/sequence.md; ``b`` bytes of an activation, ``k`` of the keys."""
    b = 4 * 2 * 32 * 16
    kv_heads = 4
    k = b * kv_heads // 4
    options = {"kv_heads": kv_heads} if name == "llama" else {}
    assert per_layer(name, "all_to_all", n, **options) == {
        "all_to_all": 2 * (b + k) * (n - 1) // n**2
    }
    assert per_layer(name, "gather", n, **options) == {"all_gather": 2 * k * (n - 1) // n}
    expected = {"collective_permute": 2 * k * (n - 1) // n}
    if name == "bert":  # its mask is data: a bias of (batch, 1, 1, sequence)
        expected["all_gather"] = 4 * 2 * 32 * (n - 1) // n
    assert per_layer(name, "ring", n, **options) == expected


def test_grouped_queries_send_fewer_keys() -> None:
    """Half as many keys and values; four devices would cut two heads of keys."""
    b, n = 4 * 2 * 32 * 16, 2
    assert per_layer("llama", "all_to_all", n) == {"all_to_all": 3 * b * (n - 1) // n**2}
    assert per_layer("llama", "gather", 4) == {"all_gather": b * 3 // 4}
    assert per_layer("llama", "ring", 4) == {"collective_permute": b * 3 // 4}
    with pytest.raises(PlanError, match=r"DIST0234.*no heads.*cp.*4.*form=gather"):
        strategy.make_plan(model("llama"), "context_parallel", {"cp": 4})


def test_every_activation_of_a_layer_is_cut() -> None:
    """None but in attention has all rows of the sequence."""
    mod = model("gpt", seq=48)
    dist = td.distribute(mod, strategy.make_plan(mod, "context_parallel", {"cp": 4}))
    whole = [
        value.name
        for function in td.export(dist).functions.values()
        for value in function.values
        if value.shape[:2] == (2, 48) and value.shape[2:] != (1, 4)
    ]
    assert whole == []


def test_no_device_of_a_ring_has_all_keys() -> None:
    """Nor the scores of all of them, nor a mask."""
    mod = model("llama", seq=48, kv_heads=4)
    dist = td.distribute(mod, strategy.make_plan(mod, "context_parallel:form=ring", {"cp": 4}))
    long = {
        (value.name, value.dtype)
        for function in td.export(dist).functions.values()
        for value in function.values
        if 48 in value.shape and value.role != "constant"
    }
    assert not long


@pytest.mark.parametrize(
    ("name", "form", "seq"),
    nightly_but(
        itertools.product(["gpt", "bert", "llama"], ["all_to_all", "gather", "ring"], [32, 30]),
        {0, 3, 5, 7, 8, 10, 13, 14, 17},
    ),
)
def test_inference_equals_one_device(name: str, form: str, seq: int) -> None:
    mod = model(name, seq=seq, **({"kv_heads": 4} if name == "llama" else {}))
    plan = strategy.make_plan(mod, f"context_parallel:form={form}", {"cp": 4})
    assert td.verify(mod, plan, engine="virtual").equal


@pytest.mark.parametrize("form", ["all_to_all", "ring"])
@pytest.mark.parametrize("engine", ["threads"])
def test_on_engines(engine: str, form: str) -> None:
    mod = model("llama")
    plan = strategy.make_plan(mod, f"context_parallel:form={form}", {"cp": 2})
    assert Plan.from_dict(plan.to_dict()) == plan
    assert td.verify(mod, plan, engine=engine).equal


@pytest.mark.parametrize(
    ("name", "form", "seq"),
    nightly_but(
        itertools.product(["gpt", "llama"], ["all_to_all", "gather"], [32, 30]), {0, 3, 5, 6}
    ),
)
def test_training_equals_one_device(name: str, form: str, seq: int) -> None:
    mod = td.train_step(model(name, seq=seq), optimizer="sgd", rate=1.0)
    plan = strategy.make_plan(mod, f"context_parallel:form={form}", {"cp": 2})
    assert td.verify(mod, plan, engine="virtual").equal


def test_training_sends_four_more_all_to_alls() -> None:
    """Per layer, back; logits lie by the vocabulary where their rows become a list of tokens."""
    n, b = 2, 4 * 2 * 32 * 16
    matches = []
    for layers in (2, 3):
        mod = td.train_step(model("gpt", layers=layers), optimizer="sgd", rate=1.0)
        matches.append(
            traffic(td.distribute(mod, strategy.make_plan(mod, "context_parallel", {"cp": n})))
        )
    matches[1].subtract(matches[0])
    assert +matches[1] == {"all_to_all": 8 * b * (n - 1) // n**2}
    assert not matches[0]["all_gather"]


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(
    ("recompute", "permuted"),
    [("none", 2 + 2 + 2), ("selective", 2 + 2 + 2), ("full", 2 + 2 + 2 + 2)],
)
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_what_a_ring_sends_in_training(name: str, recompute: str, permuted: int, n: int) -> None:
    """Forward keys and values; back they and their gradients: docs/sequence.md."""
    b = 4 * 2 * 32 * 16
    options = {"kv_heads": 4} if name == "llama" else {}
    sent = per_layer(name, "ring", n, recompute, **options)
    assert sent == {"collective_permute": permuted * b * (n - 1) // n}


def test_no_device_of_a_ring_has_all_keys_in_training() -> None:
    """Nor scores, weights or a mask."""
    mod = td.train_step(FuseAttention()(model("gpt", seq=48)), optimizer="sgd", rate=1.0)
    dist = td.distribute(mod, strategy.make_plan(mod, "context_parallel:form=ring", {"cp": 4}))
    functions = td.export(dist).functions
    long = {
        (value.name, value.dtype)
        for name, function in functions.items()
        if name.startswith("layer")
        for value in function.values
        if 48 in value.shape and value.role != "constant"
    }
    assert not long


@pytest.mark.parametrize(
    ("name", "seq", "recompute", "n"),
    nightly_but(
        [
            ("gpt", 30, "attention", 4),
            ("llama", 30, "none", 4),
            ("bert", 32, "attention", 2),
            ("gpt", 30, "selective", 4),
            ("llama", 32, "full", 2),
        ],
        {1, 2, 3},
    ),
)
def test_training_on_a_ring_equals_one_device(name: str, seq: int, recompute: str, n: int) -> None:
    """Whatever the step keeps of attention; new weights are old ones less their gradients."""
    fused = FuseAttention()(model(name, seq=seq))
    mod = td.train_step(fused, optimizer="sgd", rate=1.0, recompute=recompute)
    plan = strategy.make_plan(mod, "context_parallel:form=ring", {"cp": n})
    assert td.verify(mod, plan, engine="virtual").equal


def test_a_step_whose_attention_is_written_out_is_refused_on_a_ring() -> None:
    """Its gradient cannot be recognized; the message says what to do."""
    mod = td.train_step(model("gpt"))
    plan = strategy.make_plan(mod, "context_parallel:form=ring", {"cp": 2})
    with pytest.raises(LoweringError, match=r"DIST0511 layer_forward/.*softmax.*FuseAttention"):
        td.distribute(mod, plan)


@pytest.mark.parametrize(
    ("text", "mesh", "name", "train"),
    nightly_but(
        [
            ("data_parallel+context_parallel", {"dp": 2, "cp": 2}, "gpt", False),
            ("data_parallel+context_parallel:form=gather", {"cp": 2, "dp": 2}, "bert", False),
            ("context_parallel+megatron", {"tp": 2, "cp": 2}, "gpt", False),
            (
                "data_parallel+context_parallel:form=ring+megatron",
                {"dp": 2, "cp": 2, "tp": 2},
                "gpt",
                False,
            ),
            ("fsdp+context_parallel:form=ring", {"cp": 2, "dp": 2}, "llama", True),
            ("context_parallel+megatron", {"cp": 2, "tp": 2}, "llama", False),
            ("context_parallel:form=gather+tensor_parallel", {"cp": 2, "tp": 2}, "llama", False),
            ("data_parallel+context_parallel+megatron", {"dp": 2, "tp": 2, "cp": 2}, "gpt", False),
            ("fsdp+context_parallel", {"dp": 2, "cp": 2}, "gpt", True),
            ("deepspeed_zero1+context_parallel:form=gather", {"dp": 2, "cp": 2}, "llama", True),
            ("data_parallel+context_parallel+megatron", {"dp": 2, "tp": 2, "cp": 2}, "gpt", True),
            (
                "data_parallel+context_parallel:form=ring+megatron",
                {"dp": 2, "cp": 2, "tp": 2},
                "gpt",
                True,
            ),
        ],
        {1, 3, 4, 6, 9, 10},
    ),
)
def test_with_other_strategies(text: str, mesh: dict[str, int], name: str, train: bool) -> None:
    options = {"kv_heads": 4} if name == "llama" else {}
    mod = model(name, seq=16, **options)
    if train:
        optimizer = {"optimizer": "adamw"} if "fsdp" in text else {"momentum": 0.9}
        mod = td.train_step(FuseAttention()(mod) if "ring" in text else mod, **optimizer)
    assert td.verify(mod, strategy.make_plan(mod, text, mesh), engine="virtual").equal


def attention_op(causal: str | None, seq: int) -> ir.IRModule:
    """Three projections and ``relax.nn.attention``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, seq, 8), "float32"))
    weights = [relax.Var(name, relax.TensorType((8, 8), "float32")) for name in ("q", "k", "v")]
    with builder.function("main", [x, *weights], attrs={INPUTS_ATTR: ["x"]}):
        with builder.dataflow():
            heads = [
                builder.emit(relax.op.reshape(builder.emit(relax.op.matmul(x, w)), (2, seq, 4, 2)))
                for w in weights
            ]
            mixed = builder.emit(relax.op.nn.attention(*heads, causal_mask=causal, scale=0.6))
            out = builder.emit_output(relax.op.reshape(mixed, (2, seq, 8)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("seq", [16, 15], ids=["even", "uneven"])
@pytest.mark.parametrize("causal", [None, "TopLeft"])
@pytest.mark.parametrize(
    ("form", "kind"),
    [("all_to_all", "all_to_all"), ("gather", "all_gather"), ("ring", "collective_permute")],
)
def test_attention_as_one_op(form: str, kind: str, causal: str | None, seq: int) -> None:
    """As where its products are written out; queries know their positions under a causal mask."""
    mod = attention_op(causal, seq)
    plan = strategy.make_plan(mod, f"context_parallel:form={form}", {"cp": 4})
    dist = td.distribute(mod, plan)
    assert td.verify(mod, plan, engine="virtual", dist=dist).equal
    assert set(traffic(dist)) == {kind}


def test_training_attention_as_one_op_on_a_ring() -> None:
    """Under a causal mask, on an uneven sequence."""
    fused = FuseAttention()(attention_op("TopLeft", 15))
    mod = td.train_step(fused, loss="mse", optimizer="sgd", rate=1.0)
    plan = strategy.make_plan(mod, "context_parallel:form=ring", {"cp": 4})
    dist = td.distribute(mod, plan)
    assert set(traffic(dist)) == {"collective_permute"}
    assert td.verify(mod, plan, engine="virtual", dist=dist).equal


def test_training_in_half_precision_on_a_ring() -> None:
    """Gradients of keys and values travel in float32, and so do no others."""
    fused = FuseAttention()(model("gpt", dtype="float16", seq=30))
    mod = td.train_step(fused, optimizer="sgd", master=True)
    plan = strategy.make_plan(mod, "context_parallel:form=ring", {"cp": 2})
    dist = td.distribute(mod, plan)
    program = td.export(dist)
    moved = Counter(
        program.functions["layer_backward"].values[op.outputs[0]].dtype
        for op in program.functions["layer_backward"].ops
        if op.kind == "collective" and op.collective == "collective_permute"
    )
    assert moved == {"float16": 2, "float32": 2}
    assert td.verify(mod, plan, engine="virtual", dist=dist).equal


@pytest.mark.parametrize(
    ("text", "mesh", "error", "message"),
    [
        ("context_parallel", {"tp": 2}, MeshError, "DIST0206"),
        ("context_parallel:form=star", {"cp": 2}, PlanError, "DIST0231.*all_to_all"),
        ("context_parallel:dim=2", {"cp": 2}, PlanError, "DIST0233.*no data input has a dim 2"),
        ("context_parallel", {"cp": 64}, PlanError, "DIST0234.*sequence 32 is shorter"),
        ("context_parallel", {"cp": 8}, PlanError, r"DIST0234 layer/scores.*2x4x32x32"),
    ],
)
def test_errors(text: str, mesh: dict[str, int], error: type[Exception], message: str) -> None:
    mod = model("gpt")
    with pytest.raises(error, match=message):
        strategy.make_plan(mod, text, mesh)
