# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A step that torch exported, with its backward part and its update, is a module like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

import tvm_distir as td
from tvm_distir.core.ir.attributes.keys import PARAM_NAMES_ATTR
from tvm_distir.core.ir.placement import R
from tvm_distir.core.rewriting.forward_pass import forward_bindings
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy

STEP = Path(__file__).parent / "joint_step.py"


def exported():
    step = td.from_tvmscript(str(STEP))
    names = ["x", "t", "scale", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    step["main"] = step["main"].with_attr(PARAM_NAMES_ATTR, names)
    return step


def ours():
    """The same step of the forward model alone: order of parameters as torch has it."""
    shapes = {
        "x": [8, 6],
        "scale": [16],
        "up": [16, 6],
        "up_bias": [16],
        "down": [5, 16],
        "down_bias": [5],
    }
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    x, scale, up, up_bias, down, down_bias = params
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            h = builder.emit(op.add(builder.emit(op.matmul(x, op.permute_dims(up))), up_bias))
            squares = builder.emit(op.mean(op.multiply(h, h), -1, keepdims=True))
            norm = builder.emit(op.rsqrt(op.add(squares, relax.const(1e-5, "float32"))))
            h = builder.emit(op.multiply(op.multiply(h, norm), scale))
            h = builder.emit(op.nn.gelu(h))
            out = builder.emit_output(op.add(op.matmul(h, op.permute_dims(down)), down_bias))
        builder.emit_func_output(out)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("num_input", 1)
    return td.train_step(mod, "cross_entropy", rate=0.1)


def test_it_gives_what_our_step_gives():
    values = draw_inputs(ours())
    result = Reference(exported()).run([values[0], values[1].astype("int64"), *values[2:]])
    for a, b, before in zip(
        result, Reference(ours()).run(values), [None, *values[2:]], strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert before is None or np.abs(a - before).max() > 1e-3


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("data_parallel", {"dp": 2}),
        ("data_parallel", {"dp": 4}),
        ("tensor_parallel", {"tp": 2}),
        ("megatron", {"tp": 2}),
    ],
)
def test_it_is_distributed(text, mesh):
    """Gradients are summed by propagation, which knows of no backward part."""
    step = exported()
    plan = strategy.make_plan(step, text, mesh)
    report = td.verify(step, plan)
    assert report.equal
    assert {result.kind for result in report.collectives} == {"all_reduce"}
    if text == "data_parallel":  # the loss, its count of samples, and a gradient per weight
        assert sum(result.count for result in report.collectives) == 7
    local = td.distribute(step, plan)["main"].params[0].ty.shape
    assert int(local[0]) == 8 // mesh.get("dp", 1)


def test_megatron_reads_the_forward_part_alone():
    """A weight is also read by its gradient and its update, which say nothing of its dims."""
    plan = strategy.make_plan(exported(), "megatron", {"tp": 2})
    cut = {rule.name: rule.placement for rule in plan.rules if rule.placement != (R,)}
    assert cut == {"fc1.weight": (0,), "fc1.bias": (0,), "fc2.weight": (1,)}


def test_a_number_beside_other_results_is_no_loss():
    """What a model says beside a number, such as an auxiliary loss, is of its forward part."""
    step = exported()
    assert len(forward_bindings(step["main"])) < len(list(all_bindings(step["main"].body)))
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            number, logits = builder.emit(op.sum(x)), builder.emit(op.sum(x, [1]))
            out = builder.emit_output(relax.Tuple([number, logits]))
        builder.emit_func_output(out)
    main = builder.get()["main"]
    assert len(forward_bindings(main)) == len(list(all_bindings(main.body)))
