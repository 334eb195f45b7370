# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fused weights with segments: engines, private functions, training steps, StableHLO."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tvm import ir

import tvm_distir as td
from tests.models import gpt2_onnx
from tvm_distir.execution.runtime import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.study import Study
from tvm_distir.support.errors import ModelError

LAYER = """
    def {name}(x: R.Tensor((8, 16), "float32"), up: R.Tensor((16, 64), "float32"),
               down: R.Tensor((32, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            pair = R.split(R.matmul(x, up), 2, axis=1)
            gate = pair[0]
            value = pair[1]
            y = R.matmul(R.multiply(R.nn.relu(gate), value), down)
            R.output(y)
        return y
"""
HEAD = """
from tvm.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function"""
CALLS = """
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), up: R.Tensor((16, 64), "float32"),
             down: R.Tensor((32, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        cls = Module
        with R.dataflow():
            y = cls.layer(x, up, down)
            z = cls.layer(y, up, down)
            R.output(z)
        return z
"""
PLAN = {
    "schema_version": 1,
    "mesh": {"tp": 2},
    "rules": [
        {"param": "up", "placement": "S[1]", "segments": [32, 32]},
        {"param": "down", "placement": "S[0]"},
    ],
}


def _layer() -> ir.IRModule:
    return td.from_tvmscript(HEAD + LAYER.format(name="main"))


def _private() -> ir.IRModule:
    return td.from_tvmscript(HEAD + "(private=True)" + LAYER.format(name="layer") + CALLS)


@pytest.mark.parametrize("engine", ["threads", "mpi"])
def test_a_layer_has_one_all_reduce(engine: str) -> None:
    if engine == "mpi":
        pytest.importorskip("mpi4py")
        if shutil.which("mpiexec") is None:
            pytest.skip("there is no mpiexec")
    report = td.verify(_layer(), PLAN, engine=engine, exact=True)
    assert report.equal
    assert {c.kind: c.count for c in report.collectives} == {"all_reduce": 1}


def test_a_result_has_the_columns_of_its_weight_in_their_own_order() -> None:
    """Not interleaved, as the value that is returned is."""
    source = HEAD + LAYER.format(name="main")
    source = source.replace("R.output(y)", "R.output(first)").replace("return y", "return first")
    source = source.replace(
        "pair = R.split(R.matmul(x, up)",
        "first = R.matmul(x, up)\n            pair = R.split(first",
    )
    source = source.replace('-> R.Tensor((8, 16), "float32")', '-> R.Tensor((8, 64), "float32")')
    assert td.verify(td.from_tvmscript(source), PLAN, exact=True).equal


def test_private_functions_take_the_weight_interleaved() -> None:
    report = td.verify(_private(), PLAN)
    assert report.equal
    assert {c.kind: c.count for c in report.collectives} == {"all_reduce": 2}


def test_a_function_is_specialized_where_its_calls_differ() -> None:
    source = HEAD + "(private=True)" + LAYER.format(name="layer") + CALLS
    source = source.replace("main(x", 'main(other: R.Tensor((16, 64), "float32"), x', 1)
    mod = td.from_tvmscript(source.replace("layer(y, up", "layer(y, other"))
    inner = {"value": "gate", "function": "layer", "placement": "R"}
    for rules in (PLAN["rules"], [*PLAN["rules"], inner]):
        plan = {**PLAN, "rules": rules}
        assert td.verify(mod, plan).equal
    annotated = td.transforms.AnnotateSharding(td.Plan.from_dict(PLAN))(mod)
    assert {str(gv.name_hint) for gv in annotated.functions} == {
        "main",
        "layer",
        "layer_interleaved",
    }


def test_layers_of_a_file_are_functions_with_the_collectives_of_a_flat_graph(
    tmp_path: Path,
) -> None:
    sizes = {"layers": 2, "hidden": 16, "heads": 2, "vocab": 32, "positions": 8, "seq": 4}
    file = tmp_path / "gpt2.onnx"
    onnx.save(gpt2_onnx.build(**sizes, fused_qkv=True), file)
    study = Study(str(file), strategy="megatron", mesh={"tp": 2})
    assert "layer" in {str(gv.name_hint) for gv in study.source.mod.functions}
    report = td.verify(study.source.mod, study.step_plan)
    assert report.equal
    flat = td.from_onnx(file)
    plan = td.planning.make_plan(flat, "megatron", {"tp": 2})
    assert sum(rule.segments == (16, 16, 16) for rule in plan.rules) == 4
    text = td.distribute(flat, plan).script()
    kinds = re.findall(r"= R\.dist\.(all_\w+|reduce_\w+)\(", text)
    assert {c.kind: c.count for c in report.collectives} == Counter(kinds)


@pytest.mark.parametrize("make", [_layer, _private])
def test_training_steps(make: Callable[[], ir.IRModule]) -> None:
    assert td.verify(td.train_step(make()), PLAN).equal


def test_a_session_trains_fused_weights_and_saves_them_in_their_own_order(tmp_path: Path) -> None:
    """Also for another order of the segments, and none."""
    step = td.train_step(_layer(), loss="mse", optimizer="adam", rate=0.01)
    x, targets, *state = draw_inputs(step, seed=0)
    weights = {"up": 0.3 * state[0], "down": 0.3 * state[1]}
    reference, losses = Reference(step), []
    state = [*weights.values(), *(np.zeros_like(array) for array in state[2:])]
    for _ in range(3):
        loss, *state = reference.run([x, targets, *state])
        losses.append(float(loss))
    session = td.Session(td.distribute(step, td.Plan.from_dict(PLAN)), weights)
    assert np.array_equal(session.state_dict()["up"], weights["up"])
    got = [float(session.step(x, targets)[0]) for _ in range(2)]
    session.save(tmp_path)
    for plan in (PLAN, {**PLAN, "mesh": {"tp": 4}}, {**PLAN, "rules": []}):
        other = td.Session(td.distribute(step, td.Plan.from_dict(plan)), weights)
        other.load(tmp_path)
        for name, array in session.state_dict(optimizer=True).items():
            assert np.array_equal(other.state_dict(optimizer=True)[name], array)
        (loss,) = other.step(x, targets)
        np.testing.assert_allclose([*got, float(loss)], losses, rtol=1e-5)


def test_stablehlo_is_refused() -> None:
    with pytest.raises(ModelError, match="interleaved segments") as info:
        td.to_stablehlo(td.distribute(_layer(), PLAN))
    assert info.value.code == "DIST0380"
