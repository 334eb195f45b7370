# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules that a stage cannot take: what the error says of them, and what it says to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.interface.command import main
from tvm_distir.support.errors.tree import (
    DistIRError,
    EngineError,
    ModelError,
    SimulationError,
    UsageError,
)

MATRIX = relax.TensorType((8, 8), "float32")
PLAN = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [{"param": "x", "placement": "S[0]"}]}
WHOLE = {"schema_version": 1, "mesh": {"tp": 2}, "rules": []}
UNKNOWN = "nobody.knows_it"


def module(make: Any, *types: Any) -> Any:
    """``main(x, ...)`` of one value, which ``make(builder, x)`` gives."""
    params = [relax.Var(name, ty) for name, ty in zip("xyz", (MATRIX, *types))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(make(builder, params[0]))
        builder.emit_func_output(out)
    return builder.get()


def relu(*types: Any) -> Any:
    return module(lambda builder, x: relax.op.nn.relu(x), *types)


@T.prim_func(private=True)
def loops(x: T.Buffer((8, 8), "float32"), y: T.Buffer((8, 8), "float32")):
    for i, j in T.grid(8, 8):
        y[i, j] = x[i, j] * T.float32(2)


def test_a_kernel_of_loops_without_a_block_is_exported() -> None:
    """TVM's analysis of views takes blocks only; such a kernel is none."""
    mod = module(lambda b, x: relax.op.call_tir(b.add_func(loops, "loops"), [x], MATRIX))
    program = td.export(td.distribute(mod, WHOLE))
    (op,) = program.functions["main"].ops
    assert (op.op, op.kind, op.bytes_read, op.bytes_written) == ("loops", "compute", 256, 256)
    assert td.simulate(program, "dgx-a100").time_s > 0


CALLS = {
    "call_dps_packed": lambda b, x: relax.op.call_dps_packed(UNKNOWN, [x], MATRIX),
    "call_pure_packed": lambda b, x: relax.op.call_pure_packed(UNKNOWN, x, ty_args=[MATRIX]),
}


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize("call", CALLS)
def test_a_packed_function_that_nobody_registered(call: str, engine: str) -> None:
    dist = td.distribute(module(CALLS[call]), PLAN)
    with pytest.raises(EngineError, match=r"DIST0618 nobody\.knows_it: .*registered") as caught:
        td.run(dist, [np.ones((8, 8), "float32")], engine=engine)
    assert caught.value.exit_code == 1


def test_verify_names_the_packed_function_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mod = module(CALLS["call_dps_packed"])
    with pytest.raises(EngineError, match=r"DIST0618 nobody\.knows_it: "):
        td.verify(mod, PLAN)
    path = tmp_path / "model.py"
    path.write_text(mod.script(show_meta=True))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    plan = ["--plan", str(tmp_path / "plan.json")]
    assert main(["verify", str(path), *plan, "--engine", "virtual"]) == 1
    assert "DIST0618 nobody.knows_it" in capsys.readouterr().err


def test_a_module_of_level_5_is_simulated_as_its_program() -> None:
    dist = td.distribute(relu(), PLAN)
    of_module = td.simulate(dist, "dgx-a100")
    assert of_module.time_s == td.simulate(td.export(dist), "dgx-a100").time_s > 0
    with pytest.raises(SimulationError, match=r"DIST0714 .*td\.distribute\(mod, plan\)"):
        td.simulate(relu(), "dgx-a100")


def test_a_sweep_names_its_model() -> None:
    with pytest.raises(UsageError, match=r"DIST0151 sweep: .*IRModule .*td\.simulate\("):
        td.sweep(relu(), {"tp": [1, 2]}, "dgx-a100")


def test_collectives_of_tvm_are_no_model() -> None:
    mod = module(lambda builder, x: relax.op.ccl.allreduce(x, "sum"))
    for refused in (lambda: td.distribute(mod, PLAN), lambda: td.verify(mod, PLAN)):
        with pytest.raises(DistIRError, match=r"DIST0401|DIST0605") as caught:
            refused()
        assert "collective" in caught.value.what
        assert caught.value.remedy.startswith("Give the module of a single device")
    with pytest.raises(EngineError, match=r"DIST0605 main/\w+ \(ccl\.allreduce\): "):
        Reference(mod)


def test_an_object_as_an_input_is_passed_through() -> None:
    """It is distributed, and the user passes an object of each device to run it."""
    mod = relu(relax.AnyType())
    x = np.arange(-32, 32).reshape(8, 8).astype("float32")
    inputs = {"x": x, "y": td.DeviceObjects(dict.fromkeys(range(2), tvm.runtime.ShapeTuple([1])))}
    (result,) = td.run(td.distribute(mod, PLAN), inputs, engine="virtual")
    assert np.array_equal(result, np.maximum(x, 0))
    assert td.verify(mod, PLAN).equal  # a placeholder stands for an object that no call takes
    with pytest.raises(ModelError, match=r"DIST0380 main/y: a value of type R\.Any"):
        td.to_stablehlo(mod)


def test_inputs_of_verify_that_lack_one_name_it() -> None:
    with pytest.raises(ModelError, match="DIST0340 main/y: there is no input for y"):
        td.verify(relu(MATRIX), PLAN, inputs={"x": np.ones((8, 8), "float32")})


def test_inputs_of_verify_that_no_parameter_has_are_refused() -> None:
    """They were passed over without a word."""
    inputs = dict.fromkeys(("x", "y", "mask"), np.ones((8, 8), "float32"))
    with pytest.raises(ModelError, match='DIST0340 main: there is no parameter "mask"'):
        td.verify(relu(MATRIX), PLAN, inputs=inputs)
