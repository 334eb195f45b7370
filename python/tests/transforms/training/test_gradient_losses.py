# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Losses: of several outputs, weighted, of functions of the module."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.training.pipeline.expand_passes import SerializePipeline


@I.ir_module
class Heads:
    """A trunk with two data inputs, logits and a value; a loss with a weight for each sample."""

    @R.function(private=True)
    def weighted(
        out: R.Tensor((8, 1), "float32"),
        expected: R.Tensor((8, 1), "float32"),
        each: R.Tensor((8, 1), "float32"),
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            apart = R.subtract(out, expected)
            bent = R.multiply(apart, R.tanh(apart))
            some = R.multiply(bent, each)
            loss = R.sum(some)
            R.output(loss)
        return loss

    @R.function(private=True)
    def joint(
        logits: R.Tensor((8, 5), "float32"),
        value: R.Tensor((8, 1), "float32"),
        goal: R.Tensor((8, 5), "float32"),
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            both = R.multiply(R.subtract(logits, goal), value)
            loss = R.mean(R.multiply(both, both))
            R.output(loss)
        return loss

    @R.function
    def main(
        x: R.Tensor((8, 6), "float32"),
        y: R.Tensor((8, 6), "float32"),
        w: R.Tensor((6, 5), "float32"),
        v: R.Tensor((6, 1), "float32"),
    ):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            h = R.multiply(R.tanh(x), y)
            logits = R.matmul(h, w)
            value = R.matmul(h, v)
            R.output(logits, value)
        return (logits, value)


def run_loss(loss: str, **options):
    """What a step is given and gives, by names; weights lose their gradient."""
    step = td.train_step(Heads, loss, rate=1.0, **options)
    names = param_names(step["main"])
    inputs = dict(zip(names, draw_inputs(step), strict=True))
    result = Reference(step).run(list(inputs.values()))
    updated = step["main"].attrs["dist.training"]["updated"]
    named = dict(zip(["loss", *(n for n in names if n in updated)], result, strict=True))
    return inputs, named, step


def outputs(inputs):
    h = np.tanh(inputs["x"]) * inputs["y"]
    return h, h @ inputs["w"], h @ inputs["v"]


def test_a_weighted_sum_of_two_losses():
    inputs, result, step = run_loss("logits:cross_entropy*2,value:mse*0.5")
    names = ["x", "y", "logits_targets", "value_targets", "w", "v"]
    assert list(inputs) == names
    assert int(step["main"].attrs["num_input"]) == 4
    h, logits, value = outputs(inputs)
    apart = value - inputs["value_targets"]
    shifted = logits - logits.max(1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    goal = np.eye(5)[inputs["logits_targets"]]
    entropy = -(log_probs * goal).sum(1).mean()
    np.testing.assert_allclose(result["loss"], 2 * entropy + 0.5 * np.mean(apart**2), rtol=1e-5)
    logits_grad = 2 * (np.exp(log_probs) - goal) / 8
    np.testing.assert_allclose(inputs["w"] - result["w"], h.T @ logits_grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(inputs["v"] - result["v"], h.T @ (apart / 8), rtol=1e-3, atol=1e-5)


def test_outputs_by_number():
    by_name, by_number = (
        run_loss(f"{a}:cross_entropy,{b}:mse")[1] for a, b in (("logits", "value"), "01")
    )
    for name, value in by_name.items():
        assert np.array_equal(value, by_number[name])


def test_an_output_without_a_loss_trains_nothing():
    inputs, result, _ = run_loss("value:mse")
    assert list(inputs) == ["x", "y", "targets", "w", "v"]
    assert np.array_equal(inputs["w"], result["w"])
    assert not np.array_equal(inputs["v"], result["v"])


def test_a_function_of_the_module_is_a_loss():
    inputs, result, step = run_loss("value:weighted*0.25")
    assert list(inputs) == ["x", "y", "expected", "each", "w", "v"]
    names = {str(gv.name_hint) for gv in step.functions}
    assert {"weighted_forward", "weighted_backward"} <= names
    h, _, value = outputs(inputs)
    apart = value - inputs["expected"]
    loss = 0.25 * np.sum(apart * np.tanh(apart) * inputs["each"])
    np.testing.assert_allclose(result["loss"], loss, rtol=1e-4)
    slope = np.tanh(apart) + apart * (1 - np.tanh(apart) ** 2)
    v_grad = h.T @ (0.25 * slope * inputs["each"])
    np.testing.assert_allclose(inputs["v"] - result["v"], v_grad, rtol=1e-3, atol=1e-5)


def test_a_function_of_all_outputs():
    inputs, result, _ = run_loss("joint")
    assert list(inputs) == ["x", "y", "targets", "w", "v"]
    _, logits, value = outputs(inputs)
    loss = np.mean(((logits - inputs["targets"]) * value) ** 2)
    np.testing.assert_allclose(result["loss"], loss, rtol=1e-4)


@pytest.mark.parametrize("loss", ["logits:cross_entropy,value:weighted*0.25", "joint"])
@pytest.mark.parametrize("options", [{}, {"recompute": "full", "clip": 0.5}], ids=["plain", "full"])
def test_on_many_devices(loss, options):
    step = td.train_step(Heads, loss, "adam", **options)
    plan = strategy.make_plan(step, "data_parallel", {"dp": 2})
    assert td.verify(step, plan).equal


def test_the_same_in_stages():
    """Two micro-batches of eight samples are a batch of sixteen."""
    loss = "logits:cross_entropy,value:mse*0.5"
    staged = SerializePipeline()(
        td.train_step(Heads, loss, rate=1.0, schedule="gpipe:stages=2,micro_batches=2")
    )
    values = draw_inputs(staged)
    main = staged["main"]
    names = param_names(main)
    inputs = dict(zip(names, values, strict=True))
    assert names[:4] == ["x", "y", "logits_targets", "value_targets"]
    result = Reference(staged).run(values)
    halves = []
    plain = td.train_step(Heads, loss, rate=1.0)
    for rows in (slice(0, 8), slice(8, 16)):
        halves.append(
            Reference(plain).run(
                [
                    inputs[n][rows] if n in names[:4] else inputs[n]
                    for n in param_names(plain["main"])
                ]
            )
        )
    np.testing.assert_allclose(result[0], (halves[0][0] + halves[1][0]) / 2, rtol=1e-5)
    for a, b, c in zip(result[1:3], halves[0][1:3], halves[1][1:3], strict=True):
        np.testing.assert_allclose(a, (b + c) / 2, rtol=1e-4, atol=1e-6)


def test_half_precision():
    mod = td.zoo.llama(size="tiny", layers=1, dtype="bfloat16")
    single, two = (
        td.train_step(mod, loss, rate=1.0) for loss in ("cross_entropy", "0:cross_entropy")
    )
    assert single.script() == two.script()
    assert "wide_output" in single.script()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("mse", r'"mse" requires a single tensor, and main returns 2.*logits:mse'),
        ("logit:mse", r'there is no output "logit".*logits'),
        ("2:mse", r'there is no output "2"'),
        ("logits:mse,mse", "one of several losses names no output"),
        ("logits:mse*", r'"logits:mse\*" is not a loss'),
        ("logits:wieghted", r'no loss "wieghted".*weighted'),
        ("logits:weighted", "does not map main's outputs"),
        ("weighted", "does not map main's outputs"),
        (":mse", '":mse" is not a loss'),
    ],
)
def test_errors(loss, words):
    with pytest.raises(ModelError, match=f"(?s)DIST0351.*{words}"):
        td.train_step(Heads, loss)


def test_an_output_of_integers_has_no_mean_of_squares():
    x = relax.Var("x", relax.TensorType([4], "float32"))
    w = relax.Var("w", relax.TensorType([4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(R.multiply(x, w), "product")
            order = builder.emit(R.argsort(product), "order")
            out = builder.emit_output(relax.Tuple([product, order]))
        builder.emit_func_output(out)
    with pytest.raises(ModelError, match=r"DIST0351.*not one tensor of floats"):
        td.train_step(builder.get(), "order:mse")
