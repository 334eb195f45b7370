# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients keep functions: the same numbers as of the inlined model, at the size of one layer."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions
from tvm_distir.transforms.spec import parse_passes
from tvm_distir.transforms.training.passes import TrainStep


def same_as_inlined(mod, **options):
    """A step of the model, and one of the model without functions, run on the same inputs."""
    step = td.train_step(mod, **options)
    whole = td.train_step(InlinePrivateFunctions()(mod), **options)
    assert relax.analysis.check_well_formed(step)
    params = [[str(p.name) for p in mod["main"].params] for mod in (step, whole)]
    assert params[0] == params[1]
    values = draw_inputs(step)
    for ours, theirs in zip(Reference(step).run(values), Reference(whole).run(values), strict=True):
        # Sums of several gradients are added up in another order.
        assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        assert np.isfinite(ours).all()
    return step


def bindings_of(fn):
    return [b for block in fn.body.blocks for b in block.bindings]


def names_of(mod):
    return sorted(str(gv.name_hint) for gv in mod.functions)


@I.ir_module
class Hard:
    """Functions in functions, tuples, a weight used twice, dead results, nothing to save."""

    @R.function(private=True)
    def scaled(x: R.Tensor((4, 6), "float32"), g: R.Tensor((6,), "float32")):
        with R.dataflow():
            y = R.multiply(x, g)
            z = R.tanh(y)
            R.output(z)
        return z

    @R.function(private=True)
    def split(
        pair: R.Tuple(R.Tensor((4, 6), "float32"), R.Tensor((4,), "int64")),
        w: R.Tensor((6, 6), "float32"),
        g: R.Tensor((6,), "float32"),
    ):
        cls = Hard
        with R.dataflow():
            x = pair[0]
            order = pair[1]
            turned = R.permute_dims(w)
            y = R.matmul(x, turned)
            z = cls.scaled(y, g)
            again = cls.scaled(z, g)
            rows = R.take(again, order, axis=0, mode="clip")
            remaining = (rows, z, order)
            R.output(remaining)
        return remaining

    @R.function(private=True)
    def same(x: R.Tensor((4, 6), "float32")):
        return x

    @R.function(private=True)
    def product(a: R.Tensor((4, 6), "float32"), b: R.Tensor((4, 6), "float32")):
        with R.dataflow():
            c = R.multiply(a, b)
            R.output(c)
        return c

    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"),
        order: R.Tensor((4,), "int64"),
        w: R.Tensor((6, 6), "float32"),
        g: R.Tensor((6,), "float32"),
        unused: R.Tensor((3,), "float32"),
    ) -> R.Tensor((4, 6), "float32"):
        R.func_attr({"num_input": 2})
        cls = Hard
        with R.dataflow():
            first = cls.scaled(x, g)  # of x no gradient is asked for
            single = cls.split((first, order), w, g)
            two = cls.split((single[0], single[2]), w, g)
            dead = cls.scaled(single[1], g)  # noqa: F841
            squared = cls.product(two[0], two[0])
            mixed = cls.product(squared, single[1])
            passed = cls.same(mixed)
            out = R.add(passed, two[1])
            R.output(out)
        return out


def test_hard_cases_equal_the_inlined_model():
    step = same_as_inlined(Hard, loss="mse", optimizer="adam")
    names = names_of(step)
    # One pair for x without and one for x with a gradient; ``same`` saves nothing.
    assert "scaled_backward" in names and "scaled_backward_1" in names
    assert "split_forward" in names and "same_forward" not in names
    assert "same" in names


@pytest.mark.parametrize(("name", "reread"), [("gpt", False), ("llama", True)])
def test_models_equal_the_inlined_ones(name, reread):
    mod = getattr(td.zoo, name)(size="tiny", layers=2)
    step = same_as_inlined(mod, optimizer="adam", reread=reread)
    assert len(step.functions) == 4


def test_a_step_has_the_size_of_a_layer():
    """Of more layers only ``main`` grows: by calls, and by what is taken of their results."""
    few, many = (td.train_step(td.zoo.gpt(size="tiny", layers=n)) for n in (2, 6))
    assert names_of(few) == names_of(many)
    for name in names_of(few):
        if name != "main":
            tvm.ir.assert_structural_equal(few[name], many[name])
    weights = 16
    # Forward: call, result, saved. Backward: call, gradients. Update: call, weights.
    each = 3 + (1 + 1 + weights) + (1 + weights)
    assert len(bindings_of(many["main"])) - len(bindings_of(few["main"])) == 4 * each
    ops = {str(b.value.op.name_hint) for b in bindings_of(many["main"]) if _calls(b.value)}
    assert ops == {"layer_forward", "layer_backward", "layer_update"}


def _calls(value):
    return isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar)


def test_views_of_weights_are_not_kept():
    """Neither a transposed weight nor another view of what is at hand lives until the reverse."""
    step = td.train_step(td.zoo.gpt(size="tiny", layers=1, hidden=32, heads=4))
    forward = step["layer_forward"]
    weights = {tuple(int(n) for n in p.ty.shape) for p in forward.params if len(p.ty.shape) == 2}
    weights |= {shape[::-1] for shape in weights}
    remaining = [tuple(int(n) for n in ty.shape) for ty in forward.ret_ty.fields[1].fields]
    assert len(remaining) > 5
    assert not weights & set(remaining)


@I.ir_module
class Views:
    """A product with a reshaped weight, and one with a reshaped value that is kept anyway."""

    @R.function(private=True)
    def layer(
        x: R.Tensor((4, 6), "float32"),
        w: R.Tensor((3, 4), "float32"),
        v: R.Tensor((4, 5), "float32"),
    ):
        with R.dataflow():
            wide = R.reshape(w, R.shape([6, 2]))
            y = R.matmul(x, wide)
            z = R.tanh(y)
            turned = R.reshape(z, R.shape([2, 4]))
            out = R.matmul(turned, v)
            R.output(out)
        return out

    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"),
        w: R.Tensor((3, 4), "float32"),
        v: R.Tensor((4, 5), "float32"),
    ) -> R.Tensor((2, 5), "float32"):
        cls = Views
        with R.dataflow():
            out = cls.layer(x, w, v)
            R.output(out)
        return out


def test_views_of_what_is_at_hand_are_made_again():
    """Kept is the result of the tanh alone: neither view of the weight nor of that result."""
    step = same_as_inlined(Views, loss="mse")
    (remaining,) = step["layer_forward"].ret_ty.fields[1].fields
    assert [int(n) for n in remaining.shape] == [4, 2]


def test_the_reverse_reads_a_transposed_weight_as_it_lies():
    """``x @ w.T`` has the gradient ``grad @ w``: nothing is transposed that is a weight."""
    backward = td.train_step(td.zoo.gpt(size="tiny", layers=1))["layer_backward"]
    of = [b.value for b in bindings_of(backward) if _is(b.value, "relax.permute_dims")]
    assert of and not [v for v in of if v.args[0] in set(backward.params)]
    products = [b.value for b in bindings_of(backward) if _is(b.value, "relax.matmul")]
    assert sum(v.args[1] in set(backward.params) for v in products) == 6


def _is(value, name):
    return isinstance(value, tvm.ir.Call) and str(getattr(value.op, "name", "")) == name


def test_its_text_reads_back_and_its_input_stays():
    mod = td.zoo.vit(size="tiny")
    before = mod.script(show_meta=True)
    step = TrainStep(optimizer="adam")(mod)
    assert mod.script(show_meta=True) == before
    text = step.script(show_meta=True)
    assert tvm_ffi.structural_equal(tvm.script.from_source(text), step)
    assert TrainStep(optimizer="adam")(mod).script(show_meta=True) == text


def test_as_a_pass_in_text():
    mod = td.zoo.gpt(size="tiny", layers=2)
    expected = td.train_step(mod, "mse", "adam", rate=0.5)
    tvm.ir.assert_structural_equal(TrainStep("mse", "adam:rate=0.5")(mod), expected)
    (spec,) = parse_passes('train{loss=mse,optimizer="adam:rate=0.5"}')
    tvm.ir.assert_structural_equal(spec.make()(mod), expected)


@I.ir_module
class Branching:
    @R.function(private=True)
    def f(c: R.Tensor((), "bool"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        if c:
            y = R.tanh(x)
        else:
            y = R.exp(x)
        return y

    @R.function
    def main(
        c: R.Tensor((), "bool"), x: R.Tensor((3,), "float32"), w: R.Tensor((3,), "float32")
    ) -> R.Tensor((3,), "float32"):
        R.func_attr({"num_input": 2})
        cls = Branching
        with R.dataflow():
            s = R.add(x, w)
            out = cls.f(c, s)
            R.output(out)
        return out


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_is_taken_has_the_gradient(condition):
    """The exponential overflows where it is not taken, and its gradient is not added."""
    x, w, targets = np.array([[200, -1, 0.5], [0, 0.25, 1], [0, 1, -1]], "float32")
    x = x if condition else x / 100
    step = td.train_step(Branching, "mse", rate=1.0)
    loss, new = Reference(step).run([np.array(condition), x, targets, w])
    out = np.tanh(x + w) if condition else np.exp(x + w)
    slope = 1 - out**2 if condition else out
    np.testing.assert_allclose(loss, np.mean((out - targets) ** 2), rtol=1e-5)
    np.testing.assert_allclose(new, w - 2 * (out - targets) / 3 * slope, rtol=1e-4, atol=1e-6)


def test_an_op_without_a_gradient_is_named_with_its_function():
    @I.ir_module
    class Soft:
        @R.function(private=True)
        def f(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            with R.dataflow():
                z = R.grad.take_backward(x, x, R.const([0, 1, 2], "int64"), axis=0)
                R.output(z)
            return z

        @R.function
        def main(x: R.Tensor((3,), "float32"), w: R.Tensor((3,), "float32")):
            cls = Soft
            with R.dataflow():
                s = R.add(x, w)
                out = cls.f(s)
                R.output(out)
            return out

    with pytest.raises(ModelError, match=r"DIST0350.*grad.take_backward"):
        td.train_step(Soft, "mse")
