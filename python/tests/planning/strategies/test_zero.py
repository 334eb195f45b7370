# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ZeRO: what a device stores, what is gathered and reduced, and the results of a step."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.ir.placement import R
from tvm_distir.core.plan.plan import Plan
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import MeshError, PlanError
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule

GPT = {
    "size": "tiny",
    "layers": 1,
    "hidden": 32,
    "heads": 4,
    "vocab": 64,
    "seq": 32,
    "positions": 32,
    "batch": 32,
}
OF_THE_LAYER = 6
MATRICES = 1 + OF_THE_LAYER
"""The token table and those of the layer; rows of the table of positions are looked up."""


def gpt_step(**options: Any) -> ir.IRModule:
    return td.train_step(td.zoo.gpt(**GPT), optimizer="adam", rate=1.0, **options)


def distributed(mod: ir.IRModule, text: str, mesh: dict[str, int]) -> ir.IRModule:
    return td.distribute(mod, strategy.make_plan(mod, text, mesh))


def of_matrices(dist: ir.IRModule) -> Counter[tuple[str, tuple[int, ...]]]:
    """Collectives of tensors of rank two, by kind and mesh axes."""
    program = td.export(dist)
    return Counter(
        (op.collective, tuple(op.mesh_axes))
        for function, op in program.executed(program.entries[0].function)
        if op.kind == "collective" and len(function.values[op.outputs[0]].shape) == 2
    )


def held_shares(dist: ir.IRModule) -> dict[str, float]:
    """Part of the weights and of the states that a device holds."""
    stored: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    inputs = dist["main"].attrs["dist.io"]["inputs"]
    for item, param in zip(inputs, dist["main"].params, strict=True):
        name = str(item["name"])
        kind = "states" if name.endswith((".m", ".v", ".momentum")) else "weights"
        if name in ("input_ids", "images", "x", "targets", "step"):
            continue
        stored[kind] += math.prod(int(n) for n in param.ty.shape)
        whole[kind] += math.prod(int(n) for n in item["shape"])
    return {kind: stored[kind] / whole[kind] for kind in whole}


@pytest.mark.parametrize(
    ("stage", "weights"), [(1, 1.0), (2, 1.0), (3, 0.25)], ids=["states", "gradients", "weights"]
)
def test_what_each_stage_stores_and_sends(stage: int, weights: float) -> None:
    """States a quarter from stage 1 on, weights from stage 3 on; gradients are never whole.

    A matrix is gathered once, after its update or before its use, and its gradient reduced once
    to the part that a device updates; so is the table of positions. Either part of a layer gathers
    the weights that are stored in parts itself.
    """
    dist = distributed(gpt_step(), f"zero:stage={stage}", {"dp": 4})
    assert held_shares(dist) == {"weights": weights, "states": 0.25}
    result = of_matrices(dist)
    assert result["reduce_scatter", (0,)] == MATRICES + 1
    gathers = MATRICES + (OF_THE_LAYER if stage == 3 else 0)
    assert gathers <= result["all_gather", (0,)] <= gathers + 1
    assert not result["all_reduce", (0,)]


def test_weights_are_gathered_once_for_either_part_of_a_step() -> None:
    """What the backward part reads anew is not held in between; the step equals one device's.

    The table of positions is gathered once: its gradient does not ask for it.
    """
    step = gpt_step(reread=True)
    plan = strategy.make_plan(step, "zero", {"dp": 2})
    dist = td.distribute(step, plan)
    result = of_matrices(dist)
    assert result["reduce_scatter", (0,)] == MATRICES + 1
    assert result["all_gather", (0,)] == 2 * MATRICES + 1
    assert td.verify(step, plan, engine="virtual", dist=dist).equal


def test_convolutions_equal_one_device() -> None:
    """Convolutions, batch norms and their running statistics, a dense head; momentum."""
    mod = td.zoo.build("resnet", {"size": "tiny", "depth": 10, "batch": 4})
    step = td.train_step(mod, optimizer="sgd", momentum=0.9, rate=1.0)
    plan = strategy.make_plan(step, "zero", {"dp": 2})
    dist = td.distribute(step, plan)
    shares = held_shares(dist)
    assert shares["states"] == pytest.approx(0.5, abs=0.01)
    assert shares["weights"] == pytest.approx(0.5, abs=0.01)
    assert td.verify(step, plan, engine="virtual", dist=dist).equal


def linear(batch: int) -> ir.IRModule:
    """Three layers of a product, a bias and a sum; the last product has the first one's weight."""
    width, builder = 8, relax.BlockBuilder()
    square, vector = (relax.TensorType(s, "float32") for s in ([width, width], [width]))
    data = relax.TensorType([batch, width], "float32")
    local = [relax.Var("x", data), relax.Var("w", square), relax.Var("b", vector)]
    with builder.function("layer", local, private=True):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(local[0], local[1]))
            added = relax.op.add(builder.emit(relax.op.add(product, local[2])), local[0])
            out = builder.emit_output(added)
        builder.emit_func_output(out)
    layer = builder.get().get_global_var("layer")
    params = [relax.Var("x", data), relax.Var("first", square)]
    for i in range(3):
        params += [relax.Var(f"w{i}", square), relax.Var(f"b{i}", vector)]
    with builder.function("main", params):
        with builder.dataflow():
            value: Any = builder.emit(relax.op.matmul(params[0], params[1]))
            for i in range(3):
                value = builder.emit(ir.Call(layer, [value, *params[2 + 2 * i : 4 + 2 * i]]))
            out = builder.emit_output(relax.op.matmul(value, relax.op.permute_dims(params[1])))
        builder.emit_func_output(out)
    mod = builder.get()
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("num_input", 1))
    return mod


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("kind", ["1f1b", "zero_bubble"])
@pytest.mark.parametrize(("stages", "micros"), [(1, 4), (2, 2), (2, 4)])
def test_sums_over_micro_batches_in_parts_are_the_same_bits(
    stage: int, kind: str, stages: int, micros: int
) -> None:
    """Against a step of the whole batch on one device; all sums are exact, whatever their order.

    The step is linear, its operands are small integers, and the rate, the momentum and the
    batch are powers of two.
    """
    batch, options = 16, {"optimizer": "sgd", "momentum": 0.5, "rate": 2.0**-6}
    whole = td.train_step(linear(batch), "mse", **options)
    rng = np.random.default_rng(0)
    values = [
        rng.integers(-1, 2, [int(n) for n in p.ty.shape]).astype("float32")
        for p in whole["main"].params
    ]
    schedule = {"kind": kind, "stages": stages, "micro_batches": micros}
    step = td.train_step(linear(batch // micros), "mse", schedule=schedule, **options)
    text = f"pipeline:micro_batches={micros},schedule={kind}+zero:stage={stage}"
    dist = td.distribute(step, strategy.make_plan(step, text, {"pp": stages, "dp": 2}))
    result = td.run(ExpandSchedule()(dist), values, engine="virtual")
    for left, other in zip(result, Reference(whole).run(values), strict=True):
        np.testing.assert_array_equal(left, other)


@pytest.mark.parametrize("other", ["megatron", "tensor_parallel"])
def test_weights_of_tensor_parallelism_move_along_the_data_axis_only(other: str) -> None:
    """A quarter of everything is held; every matrix is gathered and reduced along dp alone."""
    step = gpt_step()
    mesh = {"dp": 2, "tp": 2}
    plan = strategy.make_plan(step, f"zero+{other}", mesh)
    turned = strategy.make_plan(step, f"{other}+zero", mesh)
    assert sorted(map(str, plan.rules)) == sorted(map(str, turned.rules))
    dist = td.distribute(step, plan)
    shares = held_shares(dist)
    assert shares["states"] == shares["weights"] <= 1.1 / 4
    result = of_matrices(dist)
    assert result["all_gather", (0,)] >= MATRICES
    assert result["reduce_scatter", (0,)] == MATRICES + 1
    rules = {rule.name: rule for rule in plan.rules if rule.kind == "param"}
    up = rules["h.0.mlp.up_proj.weight"]
    assert (up.stationary, up.moving) == (True, (0,))
    assert sorted(up.placement) == [0, 1]


@pytest.mark.parametrize("text", ["tensor_parallel+zero:stage=1", "megatron+zero:stage=3"])
def test_with_tensor_parallelism_a_step_equals_one_device(text: str) -> None:
    model = td.zoo.gpt(**{**GPT, "hidden": 16, "vocab": 32, "seq": 8, "batch": 4})
    step = td.train_step(model, optimizer="sgd", momentum=0.9)
    plan = strategy.make_plan(step, text, {"dp": 2, "tp": 2})
    assert td.verify(step, plan, engine="virtual").equal


def test_axes_along_which_stationary_weights_move_survive_json() -> None:
    """And are checked against the mesh."""
    plan = strategy.make_plan(gpt_step(), "zero+megatron", {"dp": 2, "tp": 2})
    output = plan.to_dict()
    assert any(rule.get("moving") == [0] for rule in output["rules"])
    assert Plan.from_dict(output) == plan
    rule = {"param": "w", "placement": "S[0], R", "stationary": True, "moving": [2]}
    with pytest.raises(PlanError, match=r'DIST0221.*"moving" is \[2\].*2 axes'):
        Plan.from_dict({"schema_version": 1, "mesh": {"dp": 2, "tp": 2}, "rules": [rule]})


def test_zero_refines_data_parallel_on_its_axis() -> None:
    """Alone, or with data_parallel on the same axis; on another one the batch is cut twice."""
    step = gpt_step()
    alone = strategy.make_plan(step, "zero", {"dp": 2})
    both = strategy.make_plan(step, "data_parallel+zero", {"dp": 2})
    assert sorted(map(str, alone.rules)) == sorted(map(str, both.rules))
    hybrid = strategy.make_plan(step, "data_parallel:axis=pod+zero", {"pod": 2, "dp": 2})
    placed = {rule.name: rule.placement for rule in hybrid.rules if rule.kind == "param"}
    assert placed["input_ids"] == (0, 0)
    assert placed["wte.weight"] == placed["wte.weight.m"] == (R, 0)


@pytest.mark.parametrize(("stage", "weights"), [(1, 1.0), (3, 0.25)])
def test_state_is_sharded_over_data_and_sequence(stage: int, weights: float) -> None:
    """One gather over both axes for each matrix; gradients are reduce-scattered along either.

    The table's gradient comes from logits that are sharded over the vocabulary along cp.
    """
    dist = distributed(gpt_step(), f"zero:stage={stage}+context_parallel", {"dp": 2, "cp": 2})
    assert held_shares(dist) == {"weights": weights, "states": 0.25}
    result = of_matrices(dist)
    gathers = MATRICES + (OF_THE_LAYER if stage == 3 else 0)
    assert gathers <= result["all_gather", (0, 1)] <= gathers + 1
    reduced = [result["reduce_scatter", axes] for axes in ((0,), (1,), (0, 1))]
    assert min(reduced[0], reduced[1]) + reduced[2] >= OF_THE_LAYER
    assert not result["all_reduce", (0,)] + result["all_reduce", (0, 1)]


def test_axes_that_shard_the_state_can_be_listed() -> None:
    """Those that shard the sequence do not shard the batch; a single name leaves out the others."""
    step = gpt_step()

    def placed(text: str, mesh: dict[str, int]) -> dict[str, Any]:
        plan = strategy.make_plan(step, text, mesh)
        return {rule.name: rule.placement for rule in plan.rules if rule.kind == "param"}

    mesh = {"dp": 2, "cp": 2}
    default, alone = (placed(f"{text}+context_parallel", mesh) for text in ("zero", "zero:axis=dp"))
    assert default == placed("zero:axis=cp/dp+context_parallel", mesh)
    assert default["input_ids"] == alone["input_ids"] == (0, 1)
    assert default["wte.weight"] == default["wte.weight.m"] == (0, 0)
    assert alone["wte.weight"] == alone["wte.weight.m"] == (0, R)
    both = placed("fsdp:axis=pod/dp", {"pod": 2, "dp": 2})
    assert both["input_ids"] == both["wte.weight"] == (0, 0)


@pytest.mark.parametrize("form", ["all_to_all", "ring"])
def test_dims_that_no_product_of_axes_divides_are_shared(form: str) -> None:
    """Both axes shard a dim of (8, 24), and each one of (9, 20); a ring shards jointly only."""
    step = td.train_step(td.zoo.gpt(**{**GPT, "hidden": 24, "vocab": 8, "batch": 3}))
    mesh = {"dp": 3, "cp": 4}
    plan = strategy.make_plan(step, f"fsdp+context_parallel:form={form}", mesh)
    placed = {rule.name: rule.placement for rule in plan.rules if rule.kind == "param"}
    assert placed["wte.weight"] == (1, 1)
    narrow = {**GPT, "hidden": 20, "vocab": 9, "batch": 3}
    step = td.train_step(td.zoo.gpt(**narrow))
    plan = strategy.make_plan(step, f"fsdp+context_parallel:form={form}", mesh)
    placed = {rule.name: rule.placement for rule in plan.rules if rule.kind == "param"}
    assert placed["wte.weight"] == (0, R if form == "ring" else 1)


def test_gradients_are_placed_from_stage_two_on() -> None:
    step = gpt_step()
    gradients = step["main"].attrs["dist.training"]["gradients"]
    name = str(gradients["wte.weight"])
    for stage, expected in ((1, []), (2, [(0,)]), (3, [(0,)])):
        plan = strategy.make_plan(step, f"zero:stage={stage}", {"dp": 2})
        rules = [r for r in plan.rules if (r.kind, r.name) == ("value", name)]
        assert [r.placement for r in rules] == expected


@pytest.mark.parametrize(
    ("text", "axes", "error", "message"),
    [
        ("zero", {"tp": 2}, MeshError, "DIST0206"),
        ("zero:axis=dp/pod", {"dp": 2}, MeshError, "DIST0206"),
        ("zero:axis=dp/dp", {"dp": 2}, PlanError, "DIST0231.*twice"),
        ("zero:stage=4", {"dp": 2}, PlanError, "DIST0231"),
        ("zero:stage=1", {"dp": 2}, PlanError, "DIST0233.*no optimizer states"),
        ("zero", {"dp": 3}, PlanError, "DIST0234"),
    ],
)
def test_errors(text: str, axes: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        strategy.make_plan(td.zoo.gpt(**GPT), text, axes)


@pytest.mark.parametrize("text", ["zero:stage=3", "fsdp"])
def test_the_head_gathers_its_weight(text: str) -> None:
    """Logits are of a device's samples, although gathering the hidden state sends less."""
    model = td.zoo.llama(size="tiny", layers=1, vocab=4096, batch=4, seq=16, dtype="bfloat16")
    step = td.train_step(model, optimizer="adamw")
    dist = td.distribute(step, strategy.make_plan(step, text, {"dp": 4}))
    main = td.export(dist).functions["main"]
    (logits,) = (op.inputs[0] for op in main.ops if op.op == "relax.nn.log_softmax")
    assert main.values[logits].shape == (16, 4096)


def test_layers_gather_their_weights_for_few_samples() -> None:
    """No collective moves an activation, although moving these sends less than the weights."""
    model = td.zoo.llama(size="tiny", layers=2, batch=4, seq=2, hidden=64, ffn=256)
    step = td.train_step(model, optimizer="adamw")
    program = td.export(distributed(step, "fsdp", {"dp": 4}))
    moved = [
        (op.collective, function.values[op.outputs[0]].shape)
        for name, function in program.functions.items()
        for op in function.ops
        if op.kind == "collective" and name.startswith("layer")
    ]
    assert all(len(shape) <= 2 for _, shape in moved)
    gathers = [shape for kind, shape in moved if kind == "all_gather" and len(shape) == 2]
    assert len(gathers) == 2 * 7  # the matrices of a layer, in both passes


@pytest.mark.parametrize("text", ["fsdp+megatron", "fsdp+megatron:sequence=1"])
def test_layers_gather_weights_that_are_sharded_twice(text: str) -> None:
    """Both passes of a layer gather its seven matrices along dp, and the step keeps none whole."""
    model = td.zoo.llama(size="tiny", layers=2, batch=8, seq=16)
    step = td.train_step(model, optimizer="adamw")
    program = td.export(distributed(step, text, {"dp": 2, "tp": 2}))
    gathers = {
        name: [
            function.values[op.outputs[0]].shape
            for op in function.ops
            if op.collective == "all_gather" and len(function.values[op.outputs[0]].shape) == 2
        ]
        for name, function in program.functions.items()
    }
    assert len(gathers["layer_forward"]) == len(gathers["layer_backward"]) == 7
    assert (64, 32) not in gathers["main"]  # only the ids of tokens and the head
    assert len(gathers["main"]) == 2
