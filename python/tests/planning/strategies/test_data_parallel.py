# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Data parallel: which parameters are data, which share the batch, and what does not divide."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import ir, relax

from tvm_distir.core.ir.placement import R
from tvm_distir.core.plan.roles import data_positions
from tvm_distir.core.plan.schema import labels_text
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import PlanError


def module(attrs: dict[str, Any] | None = None, name: str = "main", **params: str) -> ir.IRModule:
    """Module of one function; parameters as "8x4", "8x4 int32", "s" (scalar), "n" (symbolic)."""
    variables = []
    n = tvm.tirx.Var("n", "int64")
    for key, text in params.items():
        dims, _, dtype = text.partition(" ")
        shape = [] if dims == "s" else [n if d == "n" else int(d) for d in dims.split("x")]
        variables.append(relax.Var(key, relax.TensorType(shape, dtype or "float32")))
    bb = relax.BlockBuilder()
    with bb.function(name, variables, attrs):
        bb.emit_func_output(bb.emit(relax.op.astype(variables[0], "float64")))
    return bb.get()


def placements(mod: ir.IRModule, **axes: int) -> dict[str, str]:
    plan = strategy.data_parallel(mod, axes or {"dp": 2})
    return {rule.name: labels_text(rule.placement) for rule in plan.rules}


def test_batched_inputs_are_sharded_and_weights_stay() -> None:
    mod = module({"num_input": 4}, ids="8x4 int32", mask="8x1", scale="s", places="4x8", w="8x4")
    plan = strategy.data_parallel(mod, {"dp": 2})
    assert {rule.name: (rule.placement, rule.stationary) for rule in plan.rules} == {
        "ids": ((0,), False),
        "mask": ((0,), False),
        "scale": ((R,), False),
        "places": ((R,), False),
        "w": ((R,), True),
    }


def test_other_axes_stay_open() -> None:
    result = placements(module(x="8x4", w="4x4"), tp=4, dp=2)
    assert result == {"x": "?, S[0]", "w": "?, R"}


@pytest.mark.parametrize(
    ("attrs", "params", "data"),
    [
        ({"dist.inputs": ["b", "a"]}, {"w": "4", "a": "8", "b": "8"}, [1, 2]),
        ({"dist.inputs": ["in.put"]}, {"w": "4", "in_put": "8"}, [1]),
        ({"num_input": 2}, {"a": "8", "b": "8", "x": "8"}, [0, 1]),
        ({"num_input": 0}, {"x": "8"}, []),
        (None, {"w": "4x4", "x": "8"}, [1]),
        (None, {"w": "4x4", "ids": "8 int64", "n": "8 int32"}, [1, 2]),
        (None, {"a": "8", "b": "8"}, [0]),
    ],
)
def test_what_is_data(attrs: Any, params: dict[str, str], data: list[int]) -> None:
    assert data_positions(module(attrs, **params)["main"]) == data


def test_a_symbolic_batch_is_shared_by_the_inputs_of_the_same_symbol() -> None:
    result = placements(module({"num_input": 3}, x="nx4", y="nx2", z="8x4"))
    assert result == {"x": "S[0]", "y": "S[0]", "z": "R"}


def test_an_entry_of_another_name_and_several_entries() -> None:
    assert placements(module(name="forward", x="8")) == {"x": "S[0]"}
    single, two = module(name="a", x="8"), module(name="b", y="4")
    both = ir.IRModule({**dict(single.functions.items()), **dict(two.functions.items())})
    plan = strategy.data_parallel(both, {"dp": 2})
    assert [(rule.name, rule.function) for rule in plan.rules] == [("x", "a"), ("y", "b")]


def test_names_with_pattern_signs_are_meant_literally() -> None:
    mod = module({"num_input": 1, "dist.param_names": ["x[0]", "x*"]}, a="8", b="4")
    from tvm_distir.core.passes.annotate.passes import AnnotateSharding

    out = AnnotateSharding(strategy.data_parallel(mod, {"dp": 2}))(mod)
    placed = [str(b.value.attrs.placement) for b in out["main"].body.blocks[0].bindings[:2]]
    assert placed == ['"S[0]"', '"R"']


def test_a_batch_that_does_not_divide() -> None:
    with pytest.raises(PlanError) as info:
        placements(module(x="6x4"), dp=4)
    assert info.value.code == "DIST0234"
    assert info.value.location == "main/x"
    assert "6 = 1 x 4 + 2" in info.value.what
    assert "4 or 8" in info.value.remedy


def test_what_does_not_divide_is_told_of_all_entries_and_strategies_at_once() -> None:
    sizes, functions = {"a": "6", "b": "5", "c": "8"}, {}
    for name, size in sizes.items():
        functions.update(module({"num_input": 1}, name, x=size, w="8").functions.items())
    several, places = ir.IRModule(functions), ["a/x", "b/x"]
    for text in ("data_parallel", "zero:stage=3"):
        with pytest.raises(PlanError) as info:
            strategy.compose(several, {"dp": 4}, text)
        assert info.value.code == "DIST0234"
        assert [v.location for v in info.value.violations] == places, text
    with pytest.raises(PlanError) as info:
        strategy.compose(several, {"dp": 4, "cp": 7}, "data_parallel+context_parallel:dim=0")
    assert [v.location for v in info.value.violations] == places * 2


@pytest.mark.parametrize(
    "mod",
    [
        module({"num_input": 1}, scale="s", w="4x4"),
        module({"num_input": 0}, w="4x4"),
        module({"dist.inputs": ["y"]}, x="8"),
    ],
    ids=["scalar", "no data", "unknown name"],
)
def test_models_without_a_batch(mod: ir.IRModule) -> None:
    with pytest.raises(PlanError) as info:
        placements(mod)
    assert info.value.code == "DIST0233"
    assert info.value.remedy


def test_a_module_without_an_entry() -> None:
    private = ir.IRModule({ir.GlobalVar("f"): module(x="8")["main"].without_attr("global_symbol")})
    with pytest.raises(PlanError, match="DIST0225"):
        placements(private)
