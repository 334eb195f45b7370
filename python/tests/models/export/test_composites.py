# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Composites: each call is read as itself, and its decomposition computes the same."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tests.core.ops.rule_cases.all_cases import TABLE
from tvm_distir import transforms as transform
from tvm_distir.core.rewriting.calls import leaves_of
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.xla.process import XlaProcess
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.models.export.function_writer import WRITERS
from tvm_distir.models.stablehlo.composites import OPS, attributes_type
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms import WRITTEN_OPS

MESH = {"dp": 2, "tp": 2}


def module_of(call, params):
    """A module whose main is a call, and gives the fields of what it gives."""
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit(call)
            if isinstance(result.ty, relax.TupleType):
                parts = [builder.emit(result[i]) for i in range(len(result.ty.fields))]
                result = relax.Tuple(parts)
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return relax.transform.CanonicalizeBindings()(builder.get())


def module_of_case(case):
    leaves = [leaf for arg in case.call.args for leaf, _, _ in leaves_of(arg)]
    params = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, relax.Var)))
    return module_of(case.call, params)


def equal(result, mod):
    """Whether functions are structurally equal; `lv1 = lv` is no operation."""
    expected = relax.transform.CanonicalizeBindings()(mod)
    modules = [ir.IRModule(dict(each.functions)) for each in (result, expected)]
    return tvm_ffi.structural_equal(*modules)


def test_each_call_is_read_as_itself():
    read, wrong = set(), []
    for case in TABLE:
        if str(case.call.op.name) in WRITTEN_OPS:
            continue  # it is exported as the ops that it stands for
        mod = module_of_case(case)
        try:
            text = td.to_stablehlo(mod)
        except ModelError as error:
            assert error.code == "DIST0380"
            continue
        back = td.from_stablehlo(text, inline=0)
        read.add(str(case.call.op.name).removeprefix("relax."))
        bodies = mod["main"].body, back["main"].body
        if not tvm_ffi.structural_equal(*bodies, map_free_vars=True):
            wrong.append(case.name)
    assert wrong == []
    assert OPS <= read


def test_the_ops_that_may_be_named_are_those_that_are_written():
    stored = set(ir.Op.list_op_names())
    apart = ("dist.", "builtin.", "wrap_param")
    output = {n for n in WRITERS if f"relax.{n}" in stored and not n.startswith(apart)}
    assert output == OPS


def test_types_of_attributes_are_those_of_calls():
    for case in TABLE:
        name = str(case.call.op.name).removeprefix("relax.")
        attrs = case.call.attrs
        if name in OPS:
            kind = "" if attrs is None else str(type(attrs).__tvm_ffi_type_info__.type_key)
            assert attributes_type(name, case.call.op) == kind, name


def others(text):
    """A text as readers see it that do not know our ops."""
    return text.replace('name = "tvm_distir.', 'name = "someone.')


@pytest.mark.parametrize("name", ["gpt", "moe", "resnet"])
def test_what_composites_say_is_what_their_functions_compute(name):
    mod = td.zoo.build(name, {"size": "tiny", "batch": "2"})
    text = td.to_stablehlo(mod)
    inputs = draw_inputs(mod, 0)
    apart = td.from_stablehlo(others(text), inline=0)
    assert not tvm_ffi.structural_equal(apart["main"], mod["main"])
    for result, expected in zip(
        Reference(apart).run(inputs), Reference(mod).run(inputs), strict=True
    ):
        np.testing.assert_allclose(result, expected, 2e-4, 2e-5 * np.abs(expected).max())


def test_models_are_read_as_they_were():
    mod = td.zoo.build("bert", {"size": "tiny", "batch": "2"})
    back = td.from_stablehlo(td.to_stablehlo(mod))
    assert int(back["main"].attrs["num_input"]) == int(mod["main"].attrs["num_input"])
    assert equal(back, mod)
    names = [str(p.name).replace(".", "_") for p in mod["layer"].params]
    assert [str(p.name) for p in back["layer"].params] == names


def test_equal_composites_share_a_function():
    mod = td.zoo.build("gpt", {"size": "tiny", "layers": "2", "batch": "2"})
    text = td.to_stablehlo(mod)
    assert text.count("func.func private @tvm_distir.nn.layer_norm") == 1
    assert text.count('name = "tvm_distir.nn.layer_norm"') == 3  # twice a layer, once behind
    plain = td.to_stablehlo(mod, composites=False)
    assert "composite" not in plain and "tvm_distir.nn" not in plain


def softmax_text():
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    return td.to_stablehlo(module_of(relax.op.nn.softmax(x, -1), [x]))


@pytest.mark.parametrize(
    "said",
    [
        "axis = true",
        'axis = "last"',
        "axis = -1 : i64, more = 1 : i64",
        "",
        "axis = -1 : i64, arguments = []",
        "axis = -1 : i64, arguments = [unit, unit]",
        "axis = -1 : i64, arguments = [{shape = [unit]}]",
    ],
)
def test_attributes_that_the_op_has_not_leave_the_decomposition(said):
    text = softmax_text().replace("axis = -1 : i64", said)
    assert said in text
    back = td.from_stablehlo(text)
    assert "softmax" not in back.script() and "R.exp" in back.script()


@pytest.mark.parametrize("said", ["axis = 7 : i64", "axis = -1 : i64, arguments = [[unit]]"])
def test_attributes_that_do_not_fit_are_refused(said):
    with pytest.raises(ModelError, match="DIST0372"):
        td.from_stablehlo(softmax_text().replace("axis = -1 : i64", said))


def test_a_collective_in_no_local_program_is_refused():
    mod = td.zoo.build("unet", {"size": "tiny", "batch": "4"})
    local = td.distribute(mod, td.planning.make_plan(mod, "data_parallel+tensor_parallel", MESH))
    text = td.to_stablehlo(local, "replicas")
    assert "stablehlo.all_reduce" in text
    with pytest.raises(ModelError, match=r"DIST0372 .*outside of a manual computation"):
        td.from_stablehlo(text.replace("tvm_distir.port", "someone.port"))


def test_starts_of_collectives_are_read_as_the_collectives():
    mod = td.zoo.build("mlp", {"batch": "8", "layers": "2", "hidden": "16"})
    local = td.distribute(mod, td.planning.make_plan(mod, "data_parallel+tensor_parallel", MESH))
    split = transform.SplitCollectives()(local)
    assert "_start(" in split.script()
    back = td.from_stablehlo(td.to_stablehlo(split, "manual"), inline=0)
    assert equal(back, local)


def test_shardy_chooses_the_same_collectives_through_composites():
    pytest.importorskip("jax", reason="the extra jax is not installed")
    mod = td.zoo.build("gpt", {"size": "tiny", "layers": "1", "batch": "4"})
    plan = td.planning.make_plan(mod, "data_parallel+tensor_parallel", MESH)
    annotated = transform.AnnotateSharding(plan)(mod)
    inputs, worker = draw_inputs(mod, 0), XlaProcess(sys.executable, 4)
    forms = [td.to_stablehlo(annotated, composites=composites) for composites in (True, False)]
    (result, ours), (expected, theirs) = (worker.run(text, inputs, 4, False) for text in forms)
    worker.close()
    assert sorted(ours) == sorted(theirs) and ours
    for array, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(array, other, 1e-5, 1e-6)
