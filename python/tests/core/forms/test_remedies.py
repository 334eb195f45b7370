# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Refused modules are right after what the message advises."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tests.core.forms.parsing import COLUMNS, ROWS, W, X, agrees, main, parsed, refusal
from tests.core.forms.reference import agrees_with_tvm
from tests.core.forms.test_tvm_forms import TRANSPOSED, WITH_TRANSPOSE, counted, on, plain
from tvm_distir.support import DistIRError

X_OF_N = 'x: R.Tensor(("n", 16), "float32")'
CAST = 'z = R.match_cast(x, R.Tensor((8, 16), "float32"))\ny = R.matmul(z, w)'
OUT = 'R.Tensor((8, 16), "float32")'


def test_an_unknown_shape_then_a_symbolic_one_then_its_size() -> None:
    unknown = parsed(main(CAST, f'x: R.Tensor(ndim=2, dtype="float32"), {W}'))
    error = refusal(unknown, ROWS)
    assert (error.code, error.location) == ("DIST0402", "main/x")
    assert error.remedy.startswith("Give it a shape (symbolic dims are allowed)")
    symbolic = parsed(main(CAST, f"{X_OF_N}, {W}"))
    error = refusal(symbolic, ROWS)
    assert (error.code, error.location) == ("DIST0504", "main/z (Var)")
    assert "td.bind_dims gives symbolic dims their sizes" in error.remedy
    agrees_with_tvm(td.bind_dims(symbolic, {"n": 8}), [ROWS, COLUMNS])


def test_a_size_that_depends_on_values_is_passed_in() -> None:
    lines = 'm = T.int64()\nq = R.nonzero(x)\nz = R.match_cast(q, R.Tensor((2, m), "int64"))\n'
    mod = parsed(main(f"{lines}y = R.add(z, z)", X))
    error = refusal(mod, ROWS)
    assert error.code == "DIST0401"
    assert (
        error.remedy == "Compute it outside of the module, and pass the result in as an argument."
    )
    passed = parsed(main("y = R.add(z, z)", 'z: R.Tensor((2, "m"), "int64")'))
    plan = td.Plan(mesh={"tp": 2}, rules={"z": td.P("tp", None)})
    agrees_with_tvm(passed, [plan], sizes={"m": 5})


def test_a_packed_call_in_place_returns_a_new_tensor_instead() -> None:
    def double(x: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(x.numpy() * 2)

    tvm_ffi.register_global_func("tests.doubled", double, override=True)
    call = f'"tests.doubled", h, inplace_indices=[0], ty_args=[{OUT}]'
    mod = parsed(main(f"h = R.nn.relu(x)\ny = R.call_inplace_packed({call})", X))
    error = refusal(mod, ROWS)
    assert error.code == "DIST0401"
    assert error.remedy == "Call a function that returns a new tensor, by R.call_pure_packed."
    call = call.replace("inplace_indices=[0], ", "")
    agrees_with_tvm(parsed(main(f"h = R.nn.relu(x)\ny = R.call_pure_packed({call})", X)), [ROWS])


def test_a_symbolic_program_is_exported_with_sizes() -> None:
    mod = parsed(main("y = R.matmul(x, w)", f"{X_OF_N}, {W}"))
    with pytest.raises(DistIRError) as caught:
        td.export(td.distribute(mod, ROWS))
    assert (caught.value.code, caught.value.remedy) == (
        "DIST0714", 'Give the size: --dim n=N; in Python td.bind_dims(mod, {"n": N}).')  # fmt: skip
    agrees(td.bind_dims(mod, {"n": 8}), ROWS)


def test_a_rule_of_a_weight_that_tvm_has_lifted_names_what_there_is() -> None:
    mod = relax.transform.LiftTransformParams()(counted(WITH_TRANSPOSE, TRANSPOSED))
    error = refusal(mod, on({"w": td.P("tp", None)}))
    assert (error.code, error.remedy) == ("DIST0223", "Known: t, v, x.")
    assert td.verify(mod, on({"t": td.P(None, "tp")}), engine="virtual").equal
    rule = {"function": "main_transform_params", "param": "w", "placement": "S[0]"}
    lifted = td.distribute(mod, on([rule]))["main_transform_params"]
    assert [[int(n) for n in p.ty.shape] for p in lifted.params] == [[16, 16], [32, 16]]


def test_a_type_that_is_missing_is_normalized() -> None:
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    h, y = relax.Var("h"), relax.Var("y")
    block = relax.DataflowBlock(
        [relax.VarBinding(h, relax.op.nn.relu(x)), relax.VarBinding(y, relax.op.add(h, x))]
    )
    fn = relax.Function([x], relax.SeqExpr([block], y), relax.TensorType((8, 16), "float32"))
    mod = ir.IRModule({"main": fn.with_attr("global_symbol", "main")})
    error = refusal(mod, ROWS)
    assert error.code == "DIST0453"
    assert "Run relax.transform.Normalize first where a type is missing" in error.remedy
    agrees_with_tvm(relax.transform.Normalize()(mod), [ROWS])


def test_a_value_is_explained_by_its_name() -> None:
    text = str(td.explain(plain(), on({"w": td.P(None, "tp")}), "b"))
    assert text.startswith("main/b: nn.gelu, shape (8, 32)")
    assert "tp (2): S[1], from main/w" in text


@pytest.mark.parametrize("plan", [
    td.Plan({"tp": 3}, {"w": td.P(None, "tp")}),
    td.Plan(mesh={"tp": 3}, rules=[{"param": "w", "placement": "S[1]"}]),
    td.Plan(mesh={"tp": 3}, rules=[{"value": "b", "placement": td.P(None, "tp")}]),
], ids=["by position", "rules as rows", "rule of a value"])  # fmt: skip
def test_a_plan_is_written_in_several_forms(plan: td.Plan) -> None:
    agrees_with_tvm(plain(), [plan])


def test_a_device_mesh_in_text_needs_the_names_of_the_parser() -> None:
    """As ``docs/tasks/module.md`` says."""
    text = """
@I.ir_module
class M:
    I.module_attrs({"device_num": 2})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function
    def main(x: R.Tensor((8, 16), "float32")):
        y = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
        z = R.nn.relu(y)
        return z
"""
    mod = tvm.script.from_source(text, {"I": I, "R": R})
    shards = td.distribute(mod)["main"].params[0].ty.shape
    assert [int(n) for n in shards] == [4, 16]
