# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules of `relax.nn`: names of parameters, dims, equal results in both forms of parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors import EngineError, ModelError


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self) -> None:
        self.up_proj = nn.Linear(16, 32)
        self.down_proj = nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        return x + self.down_proj(op.relu(self.up_proj(x)))


class Stack(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last block."""
        for layer in self.layers:
            x = layer(x)
        return x


def spec(mode: str, rows: Any = 4) -> dict[str, Any]:
    """Return the entry point of the stack."""
    modes = {"param_mode": mode, "effect_mode": "none"}
    return {"forward": {"x": nn.spec.Tensor([rows, 16], "float32"), "$": modes}}


NAMES = [f"layers.{i}.{name}" for i in (0, 1) for name in ("up_proj.weight", "up_proj.bias")]


@pytest.mark.parametrize("mode", ["plain", "packed"])
def test_parameters_have_the_names_of_the_module(mode: str, tmp_path: Path) -> None:
    """Plans and checkpoints name the parameters as the module does."""
    module = Stack()
    names = [name for name, _ in module.named_parameters()]
    mod = td.from_nn(module, spec(mode))
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    assert [rule.name for rule in plan.rules] == ["x", *names]
    assert set(NAMES) < set(names)
    assert td.verify(mod, plan).equal
    dist, values = td.distribute(mod, plan), draw_inputs(mod, 0)
    weights = dict(zip(names, values[1:], strict=True))
    td.deploy(dist, tmp_path / "folder", weights)
    (got,) = td.load(tmp_path / "folder").run([values[0]])
    (expected,) = Reference(module.export_tvm(spec(mode))[0]).run(values)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_dims_get_sizes() -> None:
    """Symbolic dims of the entry are bound by name; other names are refused."""
    mod = td.from_nn(Stack(), spec("packed", "rows"), dims={"rows": 6})
    assert [int(n) for n in mod["forward"].params[0].ty.shape.values] == [6, 16]
    with pytest.raises(ModelError, match="DIST0313"):
        td.from_nn(Stack(), spec("packed", "rows"), dims={"columns": 6})


def test_other_objects_are_refused() -> None:
    """What cannot be exported is refused with a code."""
    with pytest.raises(ModelError, match="DIST0340"):
        td.from_nn(object(), {})


def passing(swapped: bool) -> tvm.IRModule:
    """Return a module that computes with a tensor and returns two objects, possibly swapped."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((4, 16), "float32"))
    first, second = relax.Var("first", relax.AnyType()), relax.Var("second", relax.AnyType())
    with builder.function("main", [x, first, second]):
        y = builder.emit(relax.op.add(x, x))
        objects = (second, first) if swapped else (first, second)
        builder.emit_func_output(relax.Tuple([y, relax.Tuple(objects)]))
    return builder.get()


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_objects_that_pass_through_are_compared(engine: str) -> None:
    """Effects of `relax.nn` come out unchanged, and an object in place of another is found."""
    mod, _ = Stack().export_tvm({"forward": {"x": nn.spec.Tensor([4, 16], "float32")}}, debug=True)
    plan = {"schema_version": 1, "mesh": {"x": 2}, "rules": [{"param": "x", "placement": "S[0]"}]}
    report = td.verify(mod, plan, engine, entry="forward")
    assert report.equal
    assert len(report.outputs) == 2
    assert td.verify(passing(False), plan, engine).equal
    wrong = td.verify(passing(False), plan, engine, dist=td.distribute(passing(True), plan))
    assert [output.equal for output in wrong.outputs] == [True, False, False]


def test_objects_of_no_input_are_refused() -> None:
    """An object that the module creates has no values to compare."""
    builder = relax.BlockBuilder()
    with builder.function("main", [relax.Var("x", R.Tensor((4, 16), "float32"))]):
        builder.emit_func_output(builder.emit(relax.op.null_value()))
    with pytest.raises(EngineError, match=r"DIST0605.*output 0"):
        td.verify(builder.get(), {"schema_version": 1, "mesh": {"x": 2}, "rules": []})
