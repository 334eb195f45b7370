# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Local layers: branches that do not depend on each other on meshes of their own."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import ir, relax
from tvm.relax.op import add, matmul, multiply
from tvm.relax.op.nn import relu

import tvm_distir as td
from tvm_distir.core.ir.attributes.keys import INPUTS_ATTR
from tvm_distir.core.plan.plan import Plan
from tvm_distir.hardware.systems.system import System
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import MeshError, PlanError

DEPTH = 3


def model(
    towers: str = "ab", stem: bool = False, join: bool = True, nested: bool = False, width: int = 16
) -> ir.IRModule:
    """Towers of dense layers, each with an input of its own or all on a stem; joined by a product.

    ``nested``: a tower is a call of a private function.
    """
    shape = (width // 2, width)
    inputs = [relax.Var(f"x_{t}", relax.TensorType(shape, "float32")) for t in towers]
    names = ["stem", *(f"{t}{i}" for t in towers for i in range(DEPTH))]
    weights = {n: relax.Var(n, relax.TensorType((width, width), "float32")) for n in names}
    builder = relax.BlockBuilder()
    attrs = {INPUTS_ATTR: [str(x.name) for x in inputs]}

    def layers(h: Any, of: list[Any]) -> Any:
        for w in of:
            h = builder.emit(relu(builder.emit(matmul(h, w))))
        return h

    tower = None
    if nested:
        h = relax.Var("h", relax.TensorType(shape, "float32"))
        local = [
            relax.Var(f"w{i}", relax.TensorType((width, width), "float32")) for i in range(DEPTH)
        ]
        with builder.function("tower", [h, *local], private=True):
            with builder.dataflow():
                out = builder.emit_output(layers(h, local))
            builder.emit_func_output(out)
        tower = builder.get().get_global_vars()[0]
    with builder.function("main", [*inputs, *weights.values()], attrs=attrs):
        with builder.dataflow():
            starts = list(inputs)
            if stem:
                total = starts[0]
                for x in starts[1:]:
                    total = builder.emit(add(total, x))
                starts = [builder.emit(matmul(total, weights["stem"]))] * len(towers)
            ends = []
            for t, start in zip(towers, starts, strict=True):
                of = [weights[f"{t}{i}"] for i in range(DEPTH)]
                ends.append(
                    layers(start, of)
                    if tower is None
                    else builder.emit(relax.Call(tower, [start, *of]))
                )
            result: Any = relax.Tuple(ends)
            if join:
                result = ends[0]
                for end in ends[1:]:
                    result = builder.emit(multiply(result, end))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return builder.get()


def products(dist: ir.IRModule) -> list[int]:
    """How many products each entry runs, functions that it calls included."""
    program = td.export(dist)
    return [
        sum(op.op == "relax.matmul" for _, op in program.executed(entry.function))
        for entry in program.entries
    ]


def transfers(dist: ir.IRModule) -> list[str]:
    return [
        op.op.rpartition(".")[2]
        for fn in td.export(dist).functions.values()
        for op in fn.ops
        if op.kind == "transfer"
    ]


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("towers", ["ab", "abc"])
def test_towers_run_apart_and_send_what_they_give(towers: str, nested: bool) -> None:
    """A mesh each, with the input and the weights of its tower; one transfer per join."""
    mod = model(towers, nested=nested)
    plan = strategy.make_plan(mod, "local_layers", {"br": len(towers)})
    dist = td.distribute(mod, plan)
    assert products(dist) == [DEPTH] * len(towers)
    assert sorted(transfers(dist)) == ["recv"] * (len(towers) - 1) + ["send"] * (len(towers) - 1)
    homes = {rule.name: rule.mesh for rule in plan.rules if rule.kind == "param"}
    for t in towers:
        assert len({homes[f"x_{t}"], *(homes[f"{t}{i}"] for i in range(DEPTH))}) == 1
    assert td.verify(mod, plan, dist=dist, engine="virtual").equal


def test_results_that_do_not_meet_stay_apart() -> None:
    mod = model(join=False)
    plan = strategy.make_plan(mod, "local_layers", {"br": 2})
    dist = td.distribute(mod, plan)
    assert transfers(dist) == []
    assert td.verify(mod, plan, dist=dist, engine="threads").equal


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_branches_off_a_stem(nested: bool) -> None:
    """What an op takes of the stem is computed beside it; a function is called where it belongs."""
    mod = model(stem=True, nested=nested)
    plan = strategy.make_plan(mod, "local_layers", {"br": 2})
    dist = td.distribute(mod, plan)
    first = 1 + DEPTH + (0 if nested else 1)
    assert products(dist) == [first, 2 * DEPTH + 1 - first]
    assert td.verify(mod, plan, dist=dist, engine="virtual").equal


@pytest.mark.parametrize(
    ("stem", "nested", "share"), [(False, False, 0.6), (True, False, 0.8), (True, True, 0.65)]
)
def test_branches_run_at_once(stem: bool, nested: bool, share: float) -> None:
    """Two towers on two devices take little more than one of them; off a stem, its time more."""
    mod = model(stem=stem, nested=nested, width=2048)
    alone = step_s(mod, strategy.make_plan(mod, "data_parallel", {"dp": 1}))
    apart = step_s(mod, strategy.make_plan(mod, "local_layers", {"br": 2}))
    assert apart < share * alone


def step_s(mod: ir.IRModule, plan: Plan) -> float:
    program = td.export(td.distribute(mod, plan))
    return float(td.simulate(program, System.load("dgx-a100")).time_s)


def test_more_branches_than_devices_and_other_axes() -> None:
    """Three towers on two meshes of two devices each: two together, one alone."""
    mod = model("abc")
    plan = strategy.make_plan(mod, "local_layers", {"dp": 2, "br": 2})
    assert [mesh.device_ids for mesh in plan.meshes] == [(0, 2), (1, 3)]
    dist = td.distribute(mod, plan)
    assert sorted(products(dist)) == [DEPTH, 2 * DEPTH]
    assert td.verify(mod, plan, dist=dist, engine="virtual").equal


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("local_layers+data_parallel", {"br": 2, "dp": 2}),
        ("tensor_parallel+local_layers", {"tp": 2, "br": 2}),
        ("fsdp+local_layers", {"dp": 2, "br": 2}),
    ],
)
def test_other_strategies_work_on_each_mesh(text: str, mesh: dict[str, int], train: bool) -> None:
    mod = model()
    if train:
        mod = td.train_step(mod, loss="mse", optimizer="sgd", momentum=0.9)
    plan = strategy.make_plan(mod, text, mesh)
    homes = {rule.name: (rule.mesh, rule.placement) for rule in plan.rules if rule.kind == "param"}
    assert homes["a0"][0] != homes["b0"][0]
    assert homes["x_a"][1] == ((0,) if "dp" in mesh else (-1,))
    assert td.verify(mod, plan, engine="virtual").equal


@pytest.mark.parametrize("stem", [False, True], ids=["towers", "stem"])
def test_steps_of_training(stem: bool) -> None:
    """The backward part of a tower runs where its forward part does, and its update."""
    mod = td.train_step(model(stem=stem), loss="mse", optimizer="sgd", momentum=0.9)
    plan = strategy.make_plan(mod, "local_layers", {"br": 2})
    dist = td.distribute(mod, plan)
    if not stem:  # a product forward and two back per layer, but for the first layer's input
        assert products(dist) == [3 * DEPTH - 1] * 2
    assert td.verify(mod, plan, dist=dist, engine="virtual").equal


@pytest.mark.parametrize(
    ("text", "mesh", "towers", "error", "message"),
    [
        ("local_layers", {"br": 2}, "a", PlanError, r"DIST0233 main .local_layers.*5 percent"),
        ("local_layers:least=60", {"br": 2}, "ab", PlanError, "DIST0233.*60 percent"),
        ("local_layers", {"tp": 2}, "ab", MeshError, "DIST0206"),
        ("local_layers+data_parallel", {"br": 2}, "ab", PlanError, r"DIST0232.*no mesh axis"),
        ("local_layers+local_layers:axis=b", {"br": 2, "b": 2}, "ab", PlanError, r"DIST0232.*both"),
        ("local_layers+sequence:dim=0", {"br": 2, "tp": 2}, "ab", PlanError, r"DIST0232.*places"),
    ],
)
def test_errors(
    text: str, mesh: dict[str, int], towers: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        strategy.make_plan(model(towers), text, mesh)


def test_a_chain_of_layers_has_no_branches() -> None:
    with pytest.raises(PlanError, match=r"DIST0233 main .local_layers"):
        strategy.make_plan(td.zoo.gpt(size="tiny"), "local_layers", {"br": 2})
