# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What becomes of gradients before they reach the weights: scales, clipping, masters, rates."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import ModelError


@I.ir_module
class Net:
    """Two layers by one function, and a weight of main; every gradient is far from zero."""

    @R.function(private=True)
    def layer(x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 6), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.tanh(y)
            R.output(z)
        return z

    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"),
        a: R.Tensor((6, 6), "float32"),
        b: R.Tensor((6, 6), "float32"),
        c: R.Tensor((6,), "float32"),
    ) -> R.Tensor((4, 6), "float32"):
        cls = Net
        with R.dataflow():
            single = cls.layer(x, a)
            two = cls.layer(single, b)
            out = R.multiply(two, c)
            R.output(out)
        return out


WEIGHTS = ("a", "b", "c")


def drawn_for(name, like):
    """Values that depend on the name alone; second moments are positive."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(like.shape)
    values = np.abs(values) if name.endswith(".v") else values
    return values.astype(like.dtype) if like.dtype.kind == "f" else like


def run_step(step, /, **inputs):
    """Results by the names of what they update, and the loss; inputs drawn but for those given."""
    main = step["main"]
    names = [str(n) for n in main.attrs["dist.param_names"]]
    drawn = {n: drawn_for(n, v) for n, v in zip(names, draw_inputs(step), strict=True)}
    drawn.update({k: np.asarray(v, dtype=drawn[k].dtype) for k, v in inputs.items()})
    result = Reference(step).run([drawn[name] for name in names])
    updated = [n for n in names if n in main.attrs["dist.training"]["updated"]]
    return drawn, dict(zip(["loss", *updated], result, strict=True))


def gradients_of(step_of=Net, **inputs):
    """What gradient descent at the rate 1 takes off the weights."""
    drawn, result = run_step(td.train_step(step_of, "mse", rate=1.0), **inputs)
    return {name: drawn[name] - result[name] for name in WEIGHTS}


@pytest.fixture(scope="module")
def gradients():
    return gradients_of()


def test_clipping_scales_all_gradients_by_their_common_norm(gradients):
    norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients.values()))
    assert norm > 0.1
    for most in (norm / 3, norm * 3):
        drawn, result = run_step(td.train_step(Net, "mse", clip=most, rate=1.0))
        for name in WEIGHTS:
            expected = gradients[name] * min(1.0, most / norm)
            assert np.allclose(drawn[name] - result[name], expected, rtol=1e-4, atol=1e-6)


def test_a_power_of_two_as_loss_scale_changes_no_bit():
    _, plain = run_step(td.train_step(Net, "mse", "adam"))
    _, scaled = run_step(td.train_step(Net, "mse", "adam", loss_scale=1024.0))
    assert all(np.array_equal(plain[name], scaled[name]) for name in plain)


def test_a_scale_keeps_gradients_that_half_precision_loses():
    """Of 65,536 squares of 2^-11 each has the gradient 2^-26, which float16 does not hold."""

    @I.ir_module
    class Half:
        @R.function
        def main(x: R.Tensor((256, 256), "float16"), w: R.Tensor((256,), "float16")):
            with R.dataflow():
                y = R.multiply(x, w)
                R.output(y)
            return y

    ones = np.ones((256, 256))
    inputs = {"x": ones, "targets": ones - 2**-11, "w": ones[0], "w.master": ones[0]}
    options = {"master": True, "rate": 1024.0}
    lost = run_step(td.train_step(Half, "mse", **options), **inputs)[1]
    remaining = run_step(td.train_step(Half, "mse", loss_scale=2.0**17, **options), **inputs)[1]
    assert np.array_equal(lost["w.master"], ones[0])
    assert np.array_equal(remaining["w.master"], ones[0] - 1024 * 256 * 2.0**-26)


@pytest.mark.parametrize(
    ("scale", "steps", "then", "count"), [(8.0, 7, 8.0, 8), (8.0, 1999, 16.0, 0)]
)
def test_a_dynamic_scale_grows_after_many_good_steps(scale, steps, then, count):
    step = td.train_step(Net, "mse", "adam", loss_scale="dynamic")
    drawn, result = run_step(step, loss_scale=scale, scale_steps=steps, step=4)
    _, plain = run_step(td.train_step(Net, "mse", "adam"), step=4)
    assert (result["loss_scale"], result["scale_steps"], result["step"]) == (then, count, 5)
    for name in WEIGHTS:
        assert np.array_equal(result[name], plain[name]), name
        assert not np.array_equal(result[name], drawn[name])


def test_a_step_that_overflows_changes_nothing_but_the_scale():
    step = td.train_step(Net, "mse", "adam", loss_scale="dynamic", clip=1.0)
    drawn, result = run_step(step, loss_scale=3e38, scale_steps=9, step=4)
    assert (result["loss_scale"], result["scale_steps"], result["step"]) == (
        np.float32(1.5e38),
        0,
        4,
    )
    for name in set(result) - {"loss", "loss_scale", "scale_steps"}:
        assert np.array_equal(result[name], drawn[name]), name


def test_the_rate_as_an_input_gives_the_same():
    for name, counted in (("sgd", {}), ("adamw", {"step": 3}), ("lion", {})):
        _, fixed = run_step(td.train_step(Net, "mse", name, rate=0.125), **counted)
        step = td.train_step(Net, "mse", name, rate_input=True)
        _, passed = run_step(step, rate=0.125, **counted)
        inputs = [str(n) for n in step["main"].attrs["dist.inputs"]]
        assert inputs == ["x", "targets", "rate"]
        for key in fixed:
            assert np.allclose(fixed[key], passed[key], rtol=1e-6, atol=1e-7), (name, key)


def test_lion(gradients):
    step = td.train_step(Net, "mse", "lion", rate=0.1, decay=0.5)
    drawn, result = run_step(step)
    for name in WEIGHTS:
        w, m, g = drawn[name], drawn[f"{name}.m"], gradients[name]
        near = 0.9 * m + 0.1 * g
        sure = np.abs(near) > 1e-5
        expected = w - 0.1 * (np.sign(near) + 0.5 * w)
        assert sure.sum() > 0.9 * sure.size
        assert np.allclose(result[name][sure], expected[sure], rtol=1e-4, atol=1e-5)
        assert np.allclose(result[f"{name}.m"], 0.99 * m + 0.01 * g, rtol=1e-4, atol=1e-6)


def test_decay_of_adam_is_added_to_the_gradient():
    """As torch.optim.Adam has it, and AdamW has not."""
    decay = 0.25
    drawn, result = run_step(td.train_step(Net, "mse", "adam", decay=decay), step=0)
    plain = gradients_of()
    for name in WEIGHTS:
        grad = plain[name] + decay * drawn[name]
        m = 0.9 * drawn[f"{name}.m"] + 0.1 * grad
        assert np.allclose(result[f"{name}.m"], m, rtol=1e-4, atol=1e-6)


def test_masters_take_the_update_and_weights_are_rounded():
    mod = td.zoo.llama(size="tiny", layers=1, dtype="float16")
    step = td.train_step(mod, optimizer="adamw", master=True, rate=1e-4)
    drawn, result = run_step(step, step=3)
    masters = [n for n in result if n.endswith(".master")]
    half = [n for n in drawn if f"{n}.master" in drawn]
    assert len(masters) == len(half) > 10
    for name in half:
        assert result[f"{name}.master"].dtype == np.float32
        assert np.array_equal(result[name], result[f"{name}.master"].astype("float16"))
        assert not np.array_equal(result[f"{name}.master"], drawn[f"{name}.master"])
        assert result[f"{name}.m"].dtype == result[f"{name}.v"].dtype == np.float32


def test_stages_that_train_nothing_are_refused_as_a_step_at_once_is():
    with pytest.raises(ModelError, match=r"DIST0351.*no weight is trained"):
        td.train_step(Net, "mse", frozen=["*"], schedule="gpipe:stages=2,micro_batches=2")


def test_frozen_weights_stay_and_have_no_states():
    step = td.train_step(Net, "mse", "adam", frozen=["b"])
    whole = run_step(td.train_step(Net, "mse", "adam"), step=3)[1]
    _, result = run_step(step, step=3)
    assert sorted(result) == ["a", "a.m", "a.v", "c", "c.m", "c.v", "loss", "step"]
    for name in result:
        assert np.array_equal(result[name], whole[name]), name
    # The layer that is not trained hands its gradient on, and makes none of its weight.
    layers = [str(gv.name_hint) for gv in step.functions if "layer_backward" in str(gv.name_hint)]
    assert sorted(len(step[name].ret_ty.fields) for name in layers) == [1, 1]


def test_weights_that_are_constants_are_named():
    """As exporters write them; other constants are not."""
    weight = relax.const(np.eye(6, dtype="float32"))
    shift = relax.const(np.ones(6, dtype="float32"))
    x, a = (
        relax.Var(n, relax.TensorType(list(s), "float32")) for n, s in (("x", (4, 6)), ("a", (6,)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, a]):
        with builder.dataflow():
            y = builder.emit(relax.op.multiply(x, a))
            z = builder.emit(relax.op.matmul(y, weight))
            out = builder.emit_output(relax.op.add(z, shift))
        builder.emit_func_output(out)
    with pytest.warns(UserWarning, match=r"not trained: the weights of main/lv1 \(matmul\); exp"):
        step = td.train_step(builder.get(), "mse")
    assert list(step["main"].attrs["dist.training"]["updated"]) == ["a"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frozen": ["d"]}, 'there is no weight "d"'),
        ({"frozen": ["*"]}, "no weight is trained"),
        ({"loss_scale": -1.0}, "loss_scale is -1.0"),
        ({"loss_scale": "fast"}, "loss_scale is fast"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"optimizer": "lions"}, 'no optimizer "lions".*lion'),
    ],
)
def test_errors(options, words):
    with pytest.raises(ModelError, match=f"(?s)DIST0351.*{words}"):
        td.train_step(Net, "mse", **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("step", {"optimizer": "adam"}),
        ("rate", {"rate_input": True}),
        ("a.m", {"optimizer": "lion"}),
    ],
)
def test_a_parameter_called_as_one_that_the_step_adds_is_named(name, options):
    names = ["x", "a", "b", name]
    mod = tvm.IRModule(dict(Net.functions))
    mod.update_func(mod.get_global_var("main"), Net["main"].with_attr("dist.param_names", names))
    with pytest.raises(ModelError, match=f'DIST0351.*"{name.replace(".", "_")}" has the name of'):
        td.train_step(mod, "mse", **options)


@pytest.mark.parametrize(
    "text", nightly_but(["data_parallel+megatron", "zero:stage=3+tensor_parallel"], {1})
)
def test_all_of_it_distributed_equals_one_device(text):
    model = td.zoo.gpt(
        size="tiny", layers=2, hidden=16, heads=2, vocab=32, seq=8, batch=4, positions=8
    )
    step = td.train_step(
        model,
        optimizer="adamw",
        clip=0.5,
        loss_scale="dynamic",
        rate_input=True,
        frozen=["wpe.*", "h.1.mlp.*"],
        rate=0.1,
    )
    plan = strategy.make_plan(step, text, {"dp": 2, "tp": 2})
    assert td.verify(step, plan, engine="virtual").equal
