# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules that print, assert, cast, create tensors or break a rule of Relax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import tvm_distir as td
from tvm_distir.support.errors.tree import DistIRError, EngineError

PLAN = td.Plan(mesh={"dp": 2}, rules={"x": td.P("dp", None)})
TEXT = """
@I.ir_module
class Module:
    @R.function({purity})
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor(("n", 16), "float32")):
        m = T.int64()
        {lines}
        return y
"""


def module(*lines: str, purity: str = "") -> Any:
    text = TEXT.format(purity=purity, lines="\n        ".join(lines))
    return tvm.script.from_source(text, {"I": I, "R": R, "T": T})


def code_of(mod: Any, plan: td.Plan = PLAN) -> DistIRError:
    with pytest.raises(DistIRError) as caught:
        td.distribute(mod, plan)
    return caught.value


def test_each_device_prints_the_full_tensor(capfd: pytest.CaptureFixture[str]) -> None:
    mod = td.bind_dims(
        module('_ = R.print(x, format="x: {}")', "y = R.nn.relu(x)", purity="pure=False"), {"n": 2}
    )
    values = np.arange(128, dtype="f4").reshape(8, 16)
    (result,) = td.run(td.distribute(mod, PLAN), [values, np.ones((2, 16), "f4")], engine="virtual")
    assert np.array_equal(result, values)
    assert capfd.readouterr().out.count(f"x: {values}") == 2


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_an_assertion_stops_the_run(engine: str) -> None:
    lines = ('_ = R.assert_op(R.const(False), R.sum(x), format="sum: {}")', "y = R.nn.relu(x)")
    mod = td.bind_dims(module(*lines, purity="pure=False"), {"n": 2})
    dist = td.distribute(mod, PLAN)
    with pytest.raises(
        EngineError, match=r"DIST0612 main.*worker [01]: AssertionError: .*sum: 128"
    ):
        td.run(dist, [np.ones((8, 16), "f4"), np.ones((2, 16), "f4")], engine=engine)


def test_a_cast_that_names_a_known_size_is_distributed() -> None:
    mod = module('z = R.match_cast(w, R.Tensor((m, 16), "float32"))', "y = R.nn.relu(z)")
    plan = td.Plan(mesh={"dp": 2}, rules={"w": td.P(None, "dp")})
    assert td.verify(td.bind_dims(mod, {"n": 8}), plan, engine="virtual").equal
    td.distribute(mod, plan)


def test_the_remedy_for_a_cast_is_true() -> None:
    mod = module('z = R.match_cast(w, R.Tensor((8, 16), "float32"))', "y = R.nn.relu(z)")
    error = code_of(mod)
    assert error.code == "DIST0504"
    assert "td.bind_dims" in error.remedy
    assert td.verify(td.bind_dims(mod, {"n": 8}), PLAN, engine="virtual").equal


def test_a_size_that_depends_on_data_is_not_to_be_cast() -> None:
    error = code_of(module("z = R.unique(x)", "y = R.nn.relu(z)"))
    assert error.code == "DIST0401"
    assert "match_cast" not in error.remedy


@pytest.mark.parametrize(
    "created", ['R.eye(8, 16, 0, "float32")', "R.hamming_window(16, True, 0.5, 0.5, 'float32')"]
)
def test_tensors_without_operands_are_created(created: str) -> None:
    mod = td.bind_dims(module(f"z = {created}", "y = R.add(x, z)"), {"n": 2})
    assert td.verify(mod, PLAN, engine="virtual").equal


def test_a_module_that_is_not_well_formed_is_said_first() -> None:
    fn = module("y = R.nn.relu(x)")["main"]
    (block,) = fn.body.blocks
    twice = relax.SeqExpr([relax.BindingBlock([*block.bindings, *block.bindings])], fn.body.body)
    broken = relax.Function(fn.params, twice, fn.ret_ty, True, fn.attrs)
    mod = tvm.IRModule({"main": broken})
    error = code_of(mod)
    assert (error.code, error.location) == ("DIST0453", "main")
    assert "y is defined more than once" in error.what
    with pytest.raises(td.support.LevelError, match="DIST0453 main"):
        td.verify(mod, PLAN, engine="virtual")


def test_a_rule_of_a_parameter_that_names_a_value_says_so() -> None:
    mod = module("a = R.nn.relu(x)", "y = R.nn.relu(a)")
    error = code_of(mod, td.Plan(mesh={"dp": 2}, rules={"a": td.P("dp", None)}))
    assert (error.code, error.remedy) == ("DIST0223", 'It is a value: write {"value": "a"}.')
    rule = {"value": "a", "placement": td.P("dp", None)}
    td.distribute(mod, td.Plan(mesh={"dp": 2}, rules=[rule]))
