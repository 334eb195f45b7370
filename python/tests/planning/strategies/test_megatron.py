# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Megatron: which dim of which weight is cut, by the layouts of three kinds of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tests.nightly import nightly_but
from tests.quick_compilation import quick_machine
from tvm_distir.core.ir.operators.names import COLLECTIVES
from tvm_distir.core.ir.placement import R as WHOLE
from tvm_distir.core.ir.placement import shard_slices
from tvm_distir.core.ir.types import is_private
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.name_patterns import match_name
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import labels_text
from tvm_distir.models import zoo
from tvm_distir.planning import strategies as strategy
from tvm_distir.planning.strategies.transformer_weights import projection_of
from tvm_distir.support.errors.tree import PlanError


def placements(plan: Plan) -> dict[str, str]:
    assert all(rule.kind != "param" or len(rule.placement) == 1 for rule in plan.rules)
    return {r.name: labels_text(r.placement) for r in plan.rules if r.kind == "param"}


def check_roles(matches: dict[str, str], expected: dict[str, str]) -> None:
    """Every parameter lies as the one pattern that fits it says; the others are whole."""
    for name, placement in matches.items():
        fitting = [p for pattern, p in expected.items() if match_name(pattern, name)]
        assert [placement] == (fitting or ["R"]), name
    assert all(any(match_name(pattern, name) for name in matches) for pattern in expected)


GPT = {
    "wte.weight": "S[0]",
    "h.*.attn.[qkv]_proj.*": "S[0]",
    "h.*.attn.o_proj.weight": "S[1]",
    "h.*.mlp.up_proj.*": "S[0]",
    "h.*.mlp.down_proj.weight": "S[1]",
}


@pytest.mark.parametrize("nested", [0, 1])
def test_gpt_of_the_zoo_keeps_out_in(nested: int) -> None:
    mod = zoo.gpt(size="tiny", nested=nested)
    check_roles(placements(strategy.megatron(mod, {"tp": 4})), GPT)


@pytest.mark.parametrize("nested", [0, 1])
def test_llama_of_the_zoo(nested: int) -> None:
    mod = zoo.llama(size="tiny", nested=nested)
    expected = {
        "embed_tokens.weight": "S[0]",
        "lm_head.weight": "S[0]",
        "layers.*.self_attn.[qkv]_proj.weight": "S[0]",
        "layers.*.self_attn.o_proj.weight": "S[1]",
        "layers.*.mlp.gate_proj.weight": "S[0]",
        "layers.*.mlp.up_proj.weight": "S[0]",
        "layers.*.mlp.down_proj.weight": "S[1]",
    }
    check_roles(placements(strategy.megatron(mod, {"tp": 4})), expected)


def onnx_gpt2(path: Path, fused_qkv: bool) -> ir.IRModule:
    """Two layers, four heads, batch 4."""
    onnx = pytest.importorskip("onnx")
    from tests.models import gpt2_onnx
    from tvm_distir.models.frontends import from_onnx

    sizes = dict(hidden=64, heads=4, vocab=503, positions=64, batch=4)
    onnx.save(gpt2_onnx.build(**sizes, fused_qkv=fused_qkv), path)
    return from_onnx(path)


def test_gpt2_from_onnx_keeps_in_out(tmp_path: Path) -> None:
    expected = {
        "wte.weight": "S[0]",
        "h.*.attn.[qkv]_proj.weight": "S[1]",
        "h.*.attn.[qkv]_proj.bias": "S[0]",
        "h.*.attn.o_proj.weight": "S[0]",
        "h.*.mlp.up_proj.weight": "S[1]",
        "h.*.mlp.up_proj.bias": "S[0]",
        "h.*.mlp.down_proj.weight": "S[0]",
    }
    mod = onnx_gpt2(tmp_path / "g.onnx", fused_qkv=False)
    check_roles(placements(strategy.megatron(mod, {"tp": 4})), expected)


def test_gpt2_with_one_projection_to_query_key_value(tmp_path: Path) -> None:
    mod = onnx_gpt2(tmp_path / "g.onnx", fused_qkv=True)
    expected = {
        "wte.weight": "S[0]",
        "h.*.attn.c_attn.weight": "S[1]",
        "h.*.attn.c_attn.bias": "S[0]",
        "h.*.attn.c_proj.weight": "S[0]",
        "h.*.mlp.c_fc.weight": "S[1]",
        "h.*.mlp.c_fc.bias": "S[0]",
        "h.*.mlp.c_proj.weight": "S[0]",
    }
    plan = strategy.megatron(mod, {"tp": 4})
    check_roles(placements(plan), expected)
    fused = [rule for rule in plan.rules if "c_attn" in rule.name]
    assert all(len(rule.segments) == 3 and len(set(rule.segments)) == 1 for rule in fused)
    assert td.verify(mod, plan).equal
    with pytest.raises(PlanError, match=r"DIST0234.*c_attn.*number of heads 4"):
        strategy.megatron(mod, {"tp": 8})


def test_all_weights_are_stationary_and_data_is_not() -> None:
    plan = strategy.megatron(zoo.gpt(size="tiny"), {"tp": 2})
    assert [rule.name for rule in plan.rules if not rule.stationary] == ["input_ids"]


def test_the_odd_vocabulary_is_cut_unevenly_and_the_plan_is_accepted() -> None:
    mod = zoo.gpt(size="gpt2", layers=1)
    plan = strategy.make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2})
    out = AnnotateSharding(plan)(mod)
    relax.analysis.well_formed(out)
    assert plan.rules[0].placement == (0, WHOLE)
    assert (plan.rules[1].name, plan.rules[1].placement) == ("wte.weight", (WHOLE, 0))
    assert len(list(out["main"].attrs["dist.stationary"])) == len(mod["main"].params) - 1
    assert "dist.open_axes" not in out["main"].attrs


@I.ir_module
class Block:
    """A feed-forward in both layouts: up is (out, in), down is (in, out), cast on the way."""

    @R.function(private=True)
    def ffn(
        x: R.Tensor((4, 6), "float32"),
        up: R.Tensor((8, 6), "float32"),
        down: R.Tensor((8, 6), "float32"),
    ) -> R.Tensor((4, 6), "float32"):
        turned = R.permute_dims(up, axes=[1, 0])
        wide = R.matmul(x, turned)
        cut = R.nn.relu(wide)
        out = R.matmul(cut, down)
        return out

    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"),
        fc1_weight: R.Tensor((8, 6), "float32"),
        fc2_weight: R.Tensor((8, 6), "float32"),
    ) -> R.Tensor((4, 6), "float32"):
        cls = Block
        same = R.astype(fc2_weight, "float32")
        y: R.Tensor((4, 6), "float32") = cls.ffn(x, fc1_weight, same)
        return y


def test_shards_computed_apart_add_up_to_the_whole() -> None:
    plan = strategy.megatron(Block, {"tp": 4})
    assert placements(plan) == {"x": "R", "fc1_weight": "S[0]", "fc2_weight": "S[0]"}
    draw = np.random.default_rng(0)
    arrays = [draw.integers(-2, 3, s).astype("float32") for s in [(4, 6), (8, 6), (8, 6)]]
    vm = quick_machine(Block)
    whole = vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()
    total = np.zeros_like(whole)
    for rank in range(4):
        local = []
        for array, rule in zip(arrays, plan.rules, strict=True):
            bounds = shard_slices(array.shape, rule.closed_labels, (4,), (rank,))
            local.append(array[tuple(slice(*b) for b in bounds)])
        x, up, down = local
        total += np.maximum(x @ up.T, 0) @ down
    np.testing.assert_array_equal(total, whole)


def test_sequence_parallel_cuts_what_enters_a_layer_and_what_goes_on_inside() -> None:
    mod = zoo.gpt(size="tiny")
    plan = strategy.megatron(mod, {"tp": 2}, sequence=True)
    extra = [rule for rule in plan.rules if rule.kind != "param"]
    assert {rule.placement for rule in extra} == {(1,)}
    matches = {(r.kind, r.name, r.function, r.index, r.arg) for r in extra}
    inside = [("value", n, "layer", None, None) for n in _adds_of_whole_activations(mod, "layer")]
    assert matches == {("call", "layer", None, None, 0), *inside}
    assert len(inside) == 2


def _collectives(mod: ir.IRModule, name: str = "main") -> dict[str, int]:
    """How often each collective runs, calls of private functions counted each time."""
    counts: dict[str, int] = {}
    for binding in (b for block in mod[name].body.blocks for b in block.bindings):
        call = binding.value
        if not isinstance(call, ir.Call):
            continue
        if isinstance(call.op, ir.GlobalVar):
            for op, n in _collectives(mod, str(call.op.name_hint)).items():
                counts[op] = counts.get(op, 0) + n
        elif call.op.name in [f"relax.dist.{op}" for op in COLLECTIVES]:
            op = str(call.op.name).removeprefix("relax.dist.")
            counts[op] = counts.get(op, 0) + 1
    return counts


def _legalized(mod: ir.IRModule, text: str) -> ir.IRModule:
    plan = strategy.make_plan(mod, text, {"dp": 2, "tp": 2})
    return LegalizeRedistribute()(PropagateSharding()(AnnotateSharding(plan)(mod)))


@pytest.mark.parametrize("nested", [0, 1])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_two_all_reduces_per_layer_and_one_for_the_token_table(name: str, nested: int) -> None:
    mod = getattr(zoo, name)(size="tiny", layers=3, nested=nested)
    assert _collectives(_legalized(mod, "data_parallel+megatron")) == {"all_reduce": 2 * 3 + 1}
    out = _legalized(mod, "data_parallel+megatron:sequence=1")
    assert _collectives(out) == {"all_gather": 2 * 3 + 1, "reduce_scatter": 2 * 3 + 1}


@pytest.mark.filterwarnings("ignore:megatron over")
@pytest.mark.parametrize("fused_qkv", [False, True])
def test_two_all_reduces_per_layer_from_onnx(fused_qkv: bool, tmp_path: Path) -> None:
    mod = onnx_gpt2(tmp_path / "g.onnx", fused_qkv)
    assert _collectives(_legalized(mod, "data_parallel+megatron")) == {"all_reduce": 2 * 2 + 1}


def test_a_distributed_model_computes_the_same() -> None:
    from tvm_distir.execution.verification.verifying import verify

    mod = zoo.llama(
        size="tiny", layers=1, hidden=8, heads=4, kv_heads=2, ffn=12, vocab=11, batch=4, seq=4
    )
    plan = strategy.make_plan(mod, "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 2})
    assert verify(mod, plan, engine="virtual", seed=0).equal


def _adds_of_whole_activations(mod: ir.IRModule, function: str = "main") -> list[str]:
    """Residual additions: both operands of the same three dims, counted by hand."""
    names = []
    for binding in mod[function].body.blocks[0].bindings:
        call = binding.value
        if isinstance(call, ir.Call) and call.op == ir.Op.get("relax.add"):
            shapes = [[int(n) for n in a.ty.shape] for a in call.args]
            if shapes[0] == shapes[1] and len(shapes[0]) == 3:
                names.append(str(binding.var.name))
    return names


def test_sequence_parallel_in_a_flat_model_cuts_the_residual_stream() -> None:
    mod = zoo.llama(size="tiny", nested=0)
    plan = strategy.make_plan(mod, "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 4})
    values = {r.name: labels_text(r.placement) for r in plan.rules if r.kind == "value"}
    residuals = _adds_of_whole_activations(mod)
    assert len(residuals) == 4
    assert values == dict.fromkeys(["tokens", *residuals], "?, S[1]")
    out = AnnotateSharding(plan)(mod)
    relax.analysis.well_formed(out)
    assert dict(out["main"].attrs["dist.open_axes"]).keys() == {f"{n}_placed" for n in values}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("h.0.attn.q_proj.weight", ("query", False)),
        ("h_0_attn_q_proj_bias", ("query", True)),
        ("q_proj.weight", ("query", False)),
        ("transformer.h.1.mlp.c_proj.weight", ("row", False)),
        ("layers.0.w2.weight", ("row", False)),
        ("bert.pooler.dense.weight", None),
        ("h.0.ln_1.weight", None),
        ("xwq.weight", None),
        ("q_proj", None),
        ("input_ids", None),
    ],
)
def test_roles_by_name(name: str, role: Any) -> None:
    assert projection_of(name) == role


def _renamed(names: dict[str, str]) -> ir.IRModule:
    main = Block["main"]
    inputs = [names.get(str(p.name), str(p.name)) for p in main.params]
    out = ir.IRModule(dict(Block.functions.items()))
    (gv,) = [g for g in out.get_global_vars() if not is_private(out[g])]
    out.update_func(gv, main.with_attr("dist.param_names", inputs))
    return out


@pytest.mark.parametrize(
    ("build", "axes", "code", "words"),
    [
        (lambda: _renamed({"fc1_weight": "a.weight"}), 2, "DIST0233", "looked for *q_proj.weight"),
        (lambda: _renamed({"fc2_weight": "b.weight"}), 2, "DIST0233", "looked for *o_proj.weight"),
        (lambda: Block, 3, "DIST0234", "8 = 2 x 3 + 2"),
        (lambda: zoo.gpt(size="tiny"), 8, "DIST0234", "heads 4"),
        (lambda: zoo.llama(size="tiny", kv_heads=2), 3, "DIST0234", "key/value heads 2"),
        (lambda: zoo.gpt(size="tiny", ffn=66), 4, "DIST0234", "66 = 16 x 4 + 2"),
    ],
)
def test_models_that_do_not_fit(build: Any, axes: int, code: str, words: str) -> None:
    with pytest.raises(PlanError) as info:
        strategy.megatron(build(), {"tp": axes})
    assert info.value.code == code
    assert words in str(info.value)
    assert "megatron" in info.value.location
    assert info.value.remedy


@pytest.mark.parametrize(
    ("model", "seq", "mesh"),
    nightly_but(
        [
            ("gpt", 6, {"tp": 4}),  # shards of 2, 2, 2 and 0 rows
            ("gpt", 7, {"dp": 2, "tp": 2}),
            ("llama", 7, {"tp": 4}),  # keys have two heads: two axes cut the sequence
            ("gpt", 7, {"pp": 2, "tp": 2}),
        ],
        {1, 2},
    ),
)
def test_uneven_sequences_equal_one_device(model: str, seq: int, mesh: dict[str, int]) -> None:
    """The parts that each device keeps are padded, gathered again and sent between stages so."""
    heads = {"kv_heads": 2} if model == "llama" else {}
    inputs = zoo.build(model, {"size": "tiny", "seq": seq, "batch": 2, "vocab": 64, **heads})
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2} if "pp" in mesh else None
    step = td.train_step(inputs, "cross_entropy", "sgd", schedule=schedule)
    first = {"pp": "pipeline:micro_batches=2+", "dp": "data_parallel+"}.get(next(iter(mesh)), "")
    plan = strategy.make_plan(step, f"{first}megatron:sequence=1", mesh)
    assert plan.regather
    assert td.verify(step, plan, engine="virtual").equal


def test_sequences_and_shapes_that_do_not_fit() -> None:
    with pytest.raises(PlanError, match=r'DIST0234.*the sequence 3 is shorter .* "tp" \(4\)'):
        strategy.megatron(zoo.gpt(size="tiny", seq=3), {"tp": 4}, sequence=True)
    with pytest.raises(PlanError, match=r"DIST0233.*residual stream"):
        strategy.megatron(Block, {"tp": 2}, sequence=True)


@I.ir_module
class Odd:
    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"),
        up_proj_weight: R.Tensor((6, 8), "float32"),
        down_proj_weight: R.Tensor((8, 6), "float32"),
    ) -> R.Tensor((4, 6), "float32"):
        scaled = R.multiply(up_proj_weight, R.const(2.0, "float32"))
        wide = R.matmul(x, scaled)
        out = R.matmul(wide, down_proj_weight)
        return out


@I.ir_module
class BothWays:
    @R.function
    def main(
        x: R.Tensor((6, 6), "float32"),
        up_proj_weight: R.Tensor((6, 6), "float32"),
        down_proj_weight: R.Tensor((6, 6), "float32"),
    ) -> R.Tensor((6, 6), "float32"):
        wide = R.matmul(x, up_proj_weight)
        tall = R.matmul(up_proj_weight, wide)
        out = R.matmul(tall, down_proj_weight)
        return out


@pytest.mark.parametrize(
    ("mod", "words"), [(Odd, "consumed by relax.multiply"), (BothWays, "shard dims")]
)
def test_weights_used_in_unknown_ways(mod: ir.IRModule, words: str) -> None:
    with pytest.raises(PlanError, match="DIST0233") as info:
        strategy.megatron(mod, {"tp": 2})
    assert words in info.value.what


@pytest.mark.parametrize("seq", [1, 4])
def test_heads_are_counted_at_any_length(seq: int) -> None:
    mod = zoo.llama(
        size="tiny", layers=1, hidden=32, heads=8, kv_heads=4, ffn=16, vocab=16, batch=1, seq=seq
    )
    placed = placements(strategy.megatron(mod, {"tp": 4}))
    assert any(name.endswith("q_proj.weight") and text == "S[0]" for name, text in placed.items())
    assert strategy.megatron(mod, {"tp": 8}).meshes[0].axes == {"tp": 4, "tp_copies": 2}


@pytest.mark.parametrize(
    ("text", "kv_heads", "axes", "gathers"),
    [
        ("megatron", 2, {"tp": 2, "tp_copies": 2}, 2),
        ("megatron:sequence=1", 2, {"tp": 2, "tp_copies": 2}, None),
        ("megatron", 1, {"tp": 4}, 0),
        ("tensor_parallel", 2, {"tp": 4}, None),
    ],
)
def test_fewer_heads_of_keys_than_devices_lie_on_groups(
    text: str, kv_heads: int, axes: dict[str, int], gathers: int | None
) -> None:
    """Each head of keys and values is held by a group; queries are cut over all devices."""
    from tvm_distir.execution.verification.verifying import verify

    mod = zoo.llama(size="tiny", kv_heads=kv_heads)
    plan = strategy.make_plan(mod, text, {"tp": 4})
    assert plan.meshes[0].axes == axes
    report = verify(mod, plan, engine="virtual")
    assert report.equal
    if gathers is not None:
        matches = {(c.kind, c.mesh_axis): c.count for c in report.collectives}
        assert matches.get(("all_gather", "tp_copies"), 0) == gathers  # of queries, one per layer
        assert matches["all_reduce", ",".join(axes)] == 5
        weights = {r.name: labels_text(r.placement) for r in plan.rules}
        both = ", ".join(["S[0]"] * len(axes))
        assert all(p == both for n, p in weights.items() if n.endswith("q_proj.weight"))
        keys = "R" if kv_heads == 1 else "S[0], R"
        assert all(p == keys for n, p in weights.items() if n.endswith("k_proj.weight"))


def test_405b_has_more_devices_than_heads_of_keys() -> None:
    mod = zoo.llama(size="405b", layers=2, seq=128)
    plan = strategy.make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 16})
    assert plan.meshes[0].axes == {"dp": 2, "tp": 8, "tp_copies": 2}
    name = "layers.1.self_attn.v_proj.weight"
    assert [labels_text(r.placement) for r in plan.rules if r.name == name] == ["R, S[0], R"]


@pytest.mark.parametrize("entry", ["", ",entry=serve,batch=2,seq=3,past=5"])
def test_the_widths_of_stacked_experts_are_cut(entry: str) -> None:
    """The weights of experts, (experts, in, out), are cut by columns and rows; routers are not."""
    mod = td.load_model(f"zoo:mixtral?size=tiny,capacity_factor=0{entry}").mod
    plan = strategy.make_plan(mod, "megatron", {"tp": 2})
    result = placements(plan)
    for part, label in (("gate", "S[2]"), ("up", "S[2]"), ("down", "S[1]")):
        names = [n for n in result if n.endswith(f"mlp.{part}_proj")]
        assert len(names) == 2 and {result[n] for n in names} == {label}
    assert {result[n] for n in result if n.endswith("router.weight")} == {"R"}
    assert td.verify(mod, plan).equal
