# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Experts over the ranks of tensor parallelism: equal to one device, and what is sent."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from tvm import ir

import tvm_distir as td
from tvm_distir.planning import Study, make_plan
from tvm_distir.planning.strategies.registry import parse
from tvm_distir.planning.token_groups import token_groups
from tvm_distir.support.errors.tree import PlanError

MIXTRAL = "zoo:mixtral?size=tiny"
QWEN3 = "zoo:qwen3?size=tiny,experts=8,top_k=4,expert_ffn=32"
DEEPSEEK = "zoo:deepseek?size=tiny"
SEQ = "megatron:sequence=1"
FOLDED = f"{SEQ}+expert_parallel"
BATCH, TOKENS, HIDDEN, LAYERS, FLOAT_BYTES = 4, 16, 64, 2, 4
TOP_K, TO_EXPERTS = 4, ("all_to_all", "exchange")
D2T2 = {"dp": 2, "tp": 2}
NIGHTLY = pytest.mark.nightly


def study(model: str, strategy: str, mesh: dict[str, int], optimizer: str | None = None) -> Study:
    train = None if optimizer is None else {"optimizer": optimizer}
    return Study(model, strategy=strategy, mesh=mesh, batch=BATCH, train=train, system="dgx-a100")


def sent(ours: Study) -> Counter[str]:
    """Return the bytes that a device sends, by kind.

    Exchanges among the ranks of several axes are all-to-alls; those along "cp" alone are of
    attention.
    """
    found: Counter[str] = Counter()
    for collective in ours.result.collectives:
        to_experts = collective.kind in TO_EXPERTS
        if not to_experts or collective.mesh_axis != "cp":
            kind = "all_to_all" if to_experts else collective.kind
            found[kind] += collective.wire_bytes_per_device
    return found


def run(mod: ir.IRModule) -> np.ndarray:
    """Return the result of a module on drawn inputs."""
    random, inputs = np.random.default_rng(0), []
    for param in mod["main"].params:
        values = random.normal(0, 2, list(map(int, param.ty.shape)))
        is_index = "int" in str(param.ty.dtype)
        inputs.append((abs(values) if is_index else values).astype(str(param.ty.dtype)))
    plan = make_plan(mod, "data_parallel", {"dp": 1})
    [result] = td.run(td.distribute(mod, plan), inputs, engine="virtual")
    return result


CASES = [
    pytest.param(MIXTRAL, f"data_parallel+{FOLDED}:axis=tp", D2T2, None),
    pytest.param(MIXTRAL, f"zero:stage=1+{FOLDED}:axis=dp/tp", D2T2, "adamw"),
    pytest.param(MIXTRAL, "data_parallel+megatron+expert_parallel:axis=tp", D2T2, None),
    pytest.param(MIXTRAL, f"data_parallel+{SEQ}", D2T2, "sgd", marks=NIGHTLY),
    pytest.param(QWEN3, f"zero:stage=1+{FOLDED}:axis=tp", D2T2, "adamw", marks=NIGHTLY),
    pytest.param(QWEN3, f"data_parallel+{FOLDED}:axis=dp/tp", {"dp": 2, "tp": 4}, None,
                 marks=NIGHTLY),
    pytest.param(QWEN3, f"data_parallel:axis=pod+data_parallel+{FOLDED}:axis=dp/tp",
                 {"pod": 2, **D2T2}, None, marks=NIGHTLY),
    pytest.param(QWEN3, f"data_parallel+{FOLDED}:axis=cp/tp+context_parallel",
                 {"dp": 1, "cp": 2, "tp": 2}, None, marks=NIGHTLY),
    pytest.param(DEEPSEEK, f"data_parallel+{FOLDED}:axis=dp/tp", D2T2, "sgd", marks=NIGHTLY),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:megatron over")
@pytest.mark.parametrize(("model", "strategy", "mesh", "optimizer"), CASES)
def test_equal_to_one_device(
    model: str, strategy: str, mesh: dict[str, int], optimizer: str | None
) -> None:
    """Routers, shared experts and gradients included; of DeepSeek kv_b_proj too."""
    ours = study(model, strategy, mesh, optimizer)
    assert td.verify(ours.step, ours.step_plan, engine="virtual", dist=ours.local).equal


@pytest.mark.parametrize(("axis", "mesh"), [
    ("tp", D2T2), ("tp", {"dp": 2, "tp": 4}), ("dp/tp", D2T2), ("dp/tp", {"dp": 2, "tp": 4}),
    ("cp/tp", {"dp": 1, "cp": 2, "tp": 2}),
])  # fmt: skip
def test_what_a_forward_pass_sends(axis: str, mesh: dict[str, int]) -> None:
    """Each token goes to its experts and comes back, whatever else would send less.

    Attention and the head gather the sequence, attention and the table scatter sums.
    """
    context = "+context_parallel" if "cp" in mesh else ""
    ours = study(QWEN3, f"data_parallel+{FOLDED}:axis={axis}{context}", mesh)
    experts = math.prod(mesh[name] for name in axis.split("/"))
    shared = mesh["tp"] * mesh.get("cp", 1)
    tile = BATCH // mesh["dp"] * TOKENS // shared * HIDDEN * FLOAT_BYTES
    found = sent(ours)
    assert found["all_to_all"] == 2 * LAYERS * TOP_K * tile * (experts - 1) // experts
    around = (LAYERS + 1) * tile * (mesh["tp"] - 1)
    assert (found["all_gather"], found["reduce_scatter"]) == (around, around)


@pytest.mark.parametrize("axis", ["tp", "dp/tp"])
def test_what_a_training_step_sends(axis: str) -> None:
    """Per micro-batch and layer 4 all-to-alls of all slots; the rest as documented of the stack."""
    ours = Study(
        QWEN3, strategy=f"zero:stage=1+{FOLDED}:axis={axis}", mesh=D2T2, batch=2 * BATCH,
        micro_batches=4, train={"optimizer": "adamw"}, system="h100", stack="megatron-core",
    )  # fmt: skip
    experts = math.prod(D2T2[name] for name in axis.split("/"))
    tile = TOKENS // D2T2["tp"] * HIDDEN * FLOAT_BYTES
    parts = {c.mesh_axis: c for c in ours.result.collectives if c.kind in TO_EXPERTS}
    assert {*parts} == {axis.replace("/", ",")}
    [moved] = parts.values()
    assert moved.count == 4 * LAYERS * 4
    slots = TOP_K * tile * (experts - 1) // experts
    assert moved.wire_bytes_per_device == moved.count * slots
    of_tensor = {c.kind: c.count for c in ours.result.collectives if c.mesh_axis == "tp"}
    assert of_tensor["all_gather"] == (3 * LAYERS + 3) * 4
    assert of_tensor["reduce_scatter"] == (2 * LAYERS + 2) * 4


def test_experts_are_whole_and_shared_ones_are_divided() -> None:
    """A device has some experts in full; others of tensor parallelism have parts of the rest."""
    mod = td.load_model(DEEPSEEK).mod
    with pytest.warns(UserWarning, match="shards 24 of 32 .*q_a_proj"):
        plan = make_plan(mod, f"data_parallel+{FOLDED}:axis=dp/tp", D2T2)
    placements = {rule.name: rule.placement for rule in plan.rules if rule.kind == "param"}
    assert placements["layers.1.mlp.down_proj"] == (0, 0)
    assert placements["layers.1.mlp.shared_experts.down_proj.weight"] == (-1, 1)
    assert placements["layers.1.self_attn.o_proj.weight"] == (-1, 1)
    assert placements["layers.1.self_attn.kv_b_proj.weight"] == (-1, 0)
    assert placements["input_ids"] == (0, -1)


def test_groups_are_the_parts_of_the_sequence_along_axes_of_experts() -> None:
    mesh = {"dp": 2, "cp": 2, "tp": 4}
    for text, groups in {
        f"{FOLDED}:axis=tp": 4,
        f"{FOLDED}:axis=dp/tp": 4,
        f"{FOLDED}:axis=cp/tp+context_parallel": 8,
        f"{FOLDED}:axis=dp+context_parallel": 1,
        "megatron+expert_parallel:axis=tp": 1,
    }.items():
        assert token_groups(parse(text), mesh) == groups, text


def test_an_answer_says_that_tokens_go_in_groups() -> None:
    assert study(MIXTRAL, "data_parallel+expert_parallel:axis=dp", D2T2).group_notes == ()
    [note] = study(MIXTRAL, f"data_parallel+{FOLDED}:axis=dp/tp", D2T2).group_notes
    assert note.startswith("token_groups=2: ")
    [stated] = study(f"{MIXTRAL},token_groups=4", "megatron", {"tp": 2}).group_notes
    assert stated.startswith("token_groups=4: ")


def test_tables_and_permutations_have_the_same_groups() -> None:
    """Products with one-hot tables give what reading rows gives, in groups too."""
    results = []
    for dispatch in ("permutation", "one_hot"):
        mod = td.load_model(f"{QWEN3},layers=1,token_groups=4,dispatch={dispatch}").mod
        results.append(run(mod))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


def test_groups_are_a_matter_of_layout_where_no_token_is_dropped() -> None:
    """With a slot for every token, the results do not depend on the groups; with few they do."""
    results = {}
    for factor in (0, 1):
        for groups in (1, 4):
            keys = f"capacity_factor={factor},layers=1,token_groups={groups}"
            results[factor, groups] = run(td.load_model(f"{QWEN3},{keys}").mod)
    rounding = 1e-6 * np.abs(results[0, 1]).max()
    np.testing.assert_allclose(results[0, 1], results[0, 4], rtol=1e-4, atol=rounding)
    assert not np.allclose(results[1, 1], results[1, 4], rtol=1e-2)


@pytest.mark.parametrize(
    ("text", "mesh", "message"),
    [
        ("megatron+expert_parallel:axis=tp/tp", D2T2, "DIST0231.*twice"),
        ("megatron+expert_parallel:axis=dp/tp", {"dp": 4, "tp": 4}, "DIST0234.*experts 8"),
        ("tensor_parallel+expert_parallel:axis=tp", D2T2, "DIST0232"),
    ],
)
def test_errors(text: str, mesh: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(td.load_model(QWEN3).mod, text, mesh)
