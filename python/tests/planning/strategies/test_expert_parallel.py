# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Expert parallel: which weights are experts, what moves, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.ir.placement import R
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import MeshError, PlanError

TINY = "zoo:moe?size=tiny"


def load(spec: str = TINY) -> ir.IRModule:
    return td.load_model(spec).mod


def sharded(mod: ir.IRModule, plan: Any) -> dict[str, int]:
    """Label of each sharded parameter along the only axis."""
    return {rule.name: rule.placement[0] for rule in plan.rules if rule.placement[0] != R}


def collectives(mod: ir.IRModule, plan: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """Count and wire bytes per device, by kind and axis."""
    result = td.simulate(td.export(td.distribute(mod, plan)), td.System.load("dgx-a100"))
    assert not result.unmodelled_ops
    return {(c.kind, c.mesh_axis): (c.count, c.wire_bytes_per_device) for c in result.collectives}


def products(*kinds: str) -> ir.IRModule:
    """x (4, 8, 16) times a weight (4, 16, 16) per kind: matmul, transposed, einsum, add."""
    x = relax.Var("x", relax.TensorType([4, 8, 16], "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType([4, 16, 16], "float32")) for i in range(9)]
    weights = weights[: len(kinds)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights], {"num_input": 1}):
        with builder.dataflow():
            y = x
            for kind, w in zip(kinds, weights, strict=True):
                if kind == "transposed":
                    w = builder.emit(relax.op.permute_dims(w, [0, 2, 1]))
                if kind in ("matmul", "transposed"):
                    y = builder.emit(relax.op.matmul(y, w))
                elif kind == "einsum":
                    y = builder.emit(relax.op.einsum([y, w], "ecm,emf->ecf"))
                elif kind == "summed":
                    y = builder.emit(relax.op.einsum([y, w], "ecm,emf->cf"))
                    y = builder.emit(relax.op.broadcast_to(y, relax.ShapeExpr([4, 8, 16])))
                else:
                    half = builder.emit(relax.op.strided_slice(w, [1], [0], [8]))
                    y = builder.emit(relax.op.add(y, half))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


def test_stacked_weights_are_experts_whatever_they_are_called() -> None:
    """The weights of the zoo's experts, in every layer, and nothing else but the batch."""
    mod = load()
    result = sharded(mod, strategy.make_plan(mod, "expert_parallel", {"ep": 4}))
    expected = {
        f"layers.{i}.mlp.{kind}_proj": 0 for i in range(2) for kind in ("gate", "up", "down")
    }
    assert result == {"input_ids": 0, **expected}


@pytest.mark.parametrize("kind", ["matmul", "transposed", "einsum"])
def test_products_that_keep_experts_apart(kind: str) -> None:
    mod = products(kind)
    plan = strategy.make_plan(mod, "expert_parallel:data=0", {"ep": 2})
    assert sharded(mod, plan) == {"w0": 0}
    assert td.verify(mod, plan, engine="virtual").equal


@pytest.mark.parametrize("kind", ["add", "summed"])
def test_other_weights_of_three_dims_are_no_experts(kind: str) -> None:
    """An addition multiplies nothing; a sum over the dim does not keep it apart."""
    mod = products("matmul", kind)
    plan = strategy.make_plan(mod, "expert_parallel:data=0", {"ep": 2})
    assert sharded(mod, plan) == {"w0": 0}
    with pytest.raises(PlanError, match=r"DIST0233.*w0"):
        strategy.make_plan(products(kind), "expert_parallel:data=0", {"ep": 2})


@pytest.mark.parametrize("experts", [4, 8])
def test_tokens_go_and_come_back_by_all_to_all(experts: int) -> None:
    """Two all-to-alls per layer, of all slots of a device's samples; nothing else moves."""
    mod = load(f"{TINY},experts={experts},batch=8,seq=32,top_k=1")
    plan = strategy.make_plan(mod, "expert_parallel", {"ep": 4})
    layers, hidden, devices = 2, 64, 4
    capacity = 32 * 5 // (4 * experts)
    slots_bytes = 4 * 8 // devices * experts * capacity * hidden
    assert collectives(mod, plan) == {
        ("all_to_all", "ep"): (2 * layers, 2 * layers * slots_bytes * (devices - 1) // devices)
    }


def test_each_device_holds_its_experts() -> None:
    mod = load()
    main = td.distribute(mod, strategy.make_plan(mod, "expert_parallel", {"ep": 4}))["main"]
    names = [str(each["name"]) for each in main.attrs["dist.io"]["inputs"]]
    for name, whole, param in zip(names, mod["main"].params, main.params, strict=True):
        shape, stored = [[int(n) for n in var.ty.shape] for var in (whole, param)]
        is_expert = ".mlp." in name and "router" not in name
        cut = is_expert or name == "input_ids"
        assert stored == ([shape[0] // 4, *shape[1:]] if cut else shape), name


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("expert_parallel", {"ep": 4}),
        ("data_parallel+expert_parallel+tensor_parallel", {"dp": 2, "ep": 2, "tp": 2}),
        ("data_parallel+expert_parallel:axis=dp", {"dp": 4}),
    ],
)
def test_plans_are_verified(text: str, axes: dict[str, int]) -> None:
    mod = load(f"{TINY},layers=1")
    assert td.verify(mod, strategy.make_plan(mod, text, axes), engine="virtual").equal


@pytest.mark.parametrize(
    ("spec", "text", "axes", "error", "message"),
    [
        (TINY, "expert_parallel", {"dp": 2}, MeshError, "DIST0206"),
        (TINY + ",experts=6,batch=8", "expert_parallel", {"ep": 4}, PlanError, "DIST0234.*experts"),
        (TINY + ",batch=3", "expert_parallel", {"ep": 2}, PlanError, "DIST0234.*batch"),
        ("zoo:gpt?size=tiny", "expert_parallel", {"ep": 2}, PlanError, "DIST0233"),
    ],
)
def test_errors(
    spec: str, text: str, axes: dict[str, int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        strategy.make_plan(load(spec), text, axes)


def test_the_batch_may_be_divided_over_the_axis_of_experts() -> None:
    """``data_parallel`` leaves experts to the strategy that divides the batch as well."""
    mod = load(TINY)
    alone = strategy.make_plan(mod, "expert_parallel", {"ep": 4})
    assert strategy.make_plan(mod, "data_parallel:axis=ep+expert_parallel", {"ep": 4}) == alone
    for other in ("expert_parallel:data=0", "tensor_parallel:axis=ep"):
        with pytest.raises(PlanError, match="DIST0232"):
            strategy.make_plan(mod, f"data_parallel:axis=ep+{other}", {"ep": 4})


def test_batch_and_experts_that_do_not_divide_are_told_at_once() -> None:
    mod = products("matmul", "transposed")
    with pytest.raises(PlanError) as info:
        strategy.expert_parallel(mod, {"ep": 3})
    assert info.value.code == "DIST0234"
    matches = [(v.location, v.what.split(" 4 is")[0]) for v in info.value.violations]
    assert matches == [
        ("main/x", "the batch"),
        ("main/w0", "the number of experts"),
        ("main/w1", "the number of experts"),
    ]
