# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Training steps hold no binding that carries nothing: it costs every pass after them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.quick_compilation import quick_machine
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions


def bindings_of(fn):
    return [b for block in fn.body.blocks for b in block.bindings]


def names_of(mod):
    return sorted(str(gv.name_hint) for gv in mod.functions)


def _is(value, name):
    return isinstance(value, tvm.ir.Call) and str(getattr(value.op, "name", "")) == name


def test_the_gradient_of_a_transposed_weight_is_one_contraction():
    """``x @ w.T`` gives ``grad.T @ x`` to ``w``, and nothing is transposed on the way."""
    for mod in (td.zoo.gpt(size="tiny", layers=1), InlinePrivateFunctions()(td.zoo.gpt(layers=1))):
        step = td.train_step(mod)
        fn = step["layer_backward"] if "layer_backward" in names_of(step) else step["main"]
        bindings = bindings_of(fn)
        values = {b.var: b.value for b in bindings}
        created = [b.value for b in bindings if _is(b.value, "relax.einsum")]
        assert sum(str(v.attrs.subscripts) == "abx,aby->yx" for v in created) >= 6
        turned = [b.value for b in bindings if _is(b.value, "relax.permute_dims")]
        assert not [v for v in turned if _is(values.get(v.args[0]), "relax.einsum")]


def test_a_transposed_weight_that_others_read_gets_all_gradients():
    """Of two readers of a transposed weight one hands its gradient to the weight itself."""

    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((2, 3, 4), "float64"), w: R.Tensor((4, 4), "float64")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                turned = R.permute_dims(w)
                y = R.matmul(x, turned)
                squares = R.multiply(turned, turned)
                z = R.matmul(y, squares)
                R.output(z)
            return z

    x, targets, w = values = draw_inputs(step := td.train_step(Mod, "mse", "sgd", rate=1.0))
    y, squares = x @ w.T, w.T * w.T
    apart = 2 * (y @ squares - targets) / targets.size
    by_squares = np.einsum("abx,aby->xy", y, apart)
    by_turned = np.einsum("abx,aby->xy", x, apart @ squares.T) + 2 * w.T * by_squares
    vm = quick_machine(step)
    new = vm["main"](*(tvm.runtime.tensor(v) for v in values))[1].numpy()
    assert np.allclose(new, w - by_turned.T, rtol=1e-9, atol=1e-12)


def test_a_layer_that_is_called_once_is_updated_in_main():
    """A function for the updates would be called once, and each of its weights handed twice."""
    for count, result in ((1, False), (2, True)):
        step = td.train_step(td.zoo.gpt(size="tiny", layers=count), clip=1.0)
        assert ("layer_update" in names_of(step)) == result
        assert ("layer_squares" in names_of(step)) == result


@pytest.mark.parametrize("flattened", [False, True])
def test_steps_hold_nothing_unread(flattened):
    """The first layer's input has no gradient: what its norm would need for it is not written."""
    mod = td.zoo.gpt(size="tiny", layers=2)
    mod = InlinePrivateFunctions()(mod) if flattened else mod
    for gv, fn in td.train_step(mod, frozen=["wte*", "wpe*"], reread=True).functions.items():
        used = {v for b in bindings_of(fn) for v in variables(b.value)}
        used |= set(variables(fn.body.body))
        assert [b.var.name for b in bindings_of(fn) if b.var not in used] == [], gv


def test_the_loss_is_an_output_itself():
    """It has no second name that only carries it out."""
    step = td.train_step(td.zoo.gpt(size="tiny", layers=1), "mse")["main"]
    bindings = bindings_of(step)
    assert not [b.var.name for b in bindings if isinstance(b.value, tvm.ir.Var)]
    assert step.body.body.fields[0].name == "loss"


@pytest.mark.parametrize("private", [False, True], ids=["main", "function"])
def test_items_of_tuples_that_are_written_out_hand_gradients_on(private):
    """``(a, b)[1]``, which TVM counts as normal form, is b."""

    def model(written_out):
        x, w = (relax.Var(name, relax.TensorType([3], "float64")) for name in "xw")
        builder = relax.BlockBuilder()
        name = "f" if private else "main"
        with builder.function(name, [x, w], private=private):
            with builder.dataflow():
                a = builder.emit(relax.op.multiply(x, w))
                b = builder.emit(relax.op.sin(w))
                pair = relax.Tuple([a, b])
                pair = pair if written_out else builder.emit(pair)
                parts = [relax.TupleGetItem(pair, i) for i in (0, 1, 1)]
                if not written_out:
                    parts = [builder.emit(part) for part in parts]
                both = builder.emit(relax.op.concat(parts, 0))
                out = builder.emit_output(relax.op.multiply(both, both))
            gv = builder.emit_func_output(out)
        if private:
            x, w = (relax.Var(name, relax.TensorType([3], "float64")) for name in "xw")
            with builder.function("main", [x, w]):
                with builder.dataflow():
                    out = builder.emit_output(relax.Call(gv, [x, w]))
                builder.emit_func_output(out)
        return builder.get()

    matches = []
    for written_out in (False, True):
        step = td.train_step(model(written_out), "mse")
        inputs = [np.linspace(0.1, 1, n) for n in (3, 9, 3)]
        matches.append(Reference(step).run(inputs))
    for a, b in zip(*matches, strict=True):
        assert np.array_equal(a, b)
    assert np.abs(matches[0][1] - inputs[2]).max() > 1e-3
