# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Dropout in training: a mask is that of the element, wherever it lies and whenever it is drawn."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tvm
from tvm import ir, relax, te, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.training.autodiff.rules.masks import philox
from tvm_distir.transforms.training.autodiff.rules.primfuncs import unmarked
from tvm_distir.transforms.training.step.dropouts import with_streams

ALL = 0xFFFFFFFF
RATE = 0.25


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([ALL] * 4, [ALL] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter, key, words):
    """Those that come with the generator's authors' library (Random123, kat_vectors)."""
    c, k = (te.placeholder((n,), "int64") for n in (4, 2))

    def word(number):
        def value():
            named = []
            unsigned = [[x[i].astype("uint64") for i in range(n)] for x, n in ((c, 4), (k, 2))]
            result = philox(*unsigned, named)[number]
            for var, label in reversed(named):
                result = tirx.Let(var, label, result)
            return result

        return value

    results = [te.compute((), word(n)) for n in range(4)]
    run = tvm.compile(te.create_prim_func([c, k, *results]), "llvm")
    out = [tvm.runtime.tensor(np.zeros((), "uint64")) for _ in results]
    run(*(tvm.runtime.tensor(np.array(x, "int64")) for x in (counter, key)), *out)
    assert " ".join(f"{int(x.numpy()):08x}" for x in out) == words


def dropped(*shape: int, twice: bool = False) -> ir.IRModule:
    """``main(x, dropout)``: the dropout of x, by a function that is called once or twice."""
    ty = relax.TensorType(list(shape), "float32")
    builder, x = relax.BlockBuilder(), relax.Var("x", ty)
    with builder.function("layer", [x], private=True):
        with builder.dataflow():
            both = builder.emit(relax.op.nn.dropout(x, RATE))
            out = builder.emit_output(relax.TupleGetItem(both, 0))
        builder.emit_func_output(out)
    layer, x = builder.get().get_global_var("layer"), relax.Var("x", ty)
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit(ir.Call(layer, [x]))
            if twice:
                out = builder.emit(relax.Tuple([out, builder.emit(ir.Call(layer, [x]))]))
            out = builder.emit_output(out, "out")
        builder.emit_func_output(out)
    mod = with_streams(builder.get())
    functions = mod.functions.items()
    plain = {g: unmarked(f) if isinstance(f, relax.Function) else f for g, f in functions}
    return ir.IRModule(plain, attrs=mod.attrs)


def masks(mod: ir.IRModule, shape: tuple[int, ...], seed: int, step: int) -> list[np.ndarray]:
    state = np.array((seed << 32) + step, "int64")
    return Reference(mod).run([np.ones(shape, "float32"), state])


def test_elements_stay_as_often_as_they_should():
    shape = (64, 257)
    (result,) = masks(dropped(*shape), shape, 1, 0)
    assert set(np.unique(result)) == {np.float32(0), np.float32(1 / (1 - RATE))}
    deviation = np.sqrt(RATE * (1 - RATE) / result.size)
    assert abs((result != 0).mean() - (1 - RATE)) < 4 * deviation
    # Neighbours along either dim are drawn apart from each other.
    remaining = (result != 0) - (1 - RATE)
    for a, b in ((remaining[1:], remaining[:-1]), (remaining[:, 1:], remaining[:, :-1])):
        assert abs((a * b).mean()) < 4 * RATE * (1 - RATE) / np.sqrt(a.size)


def test_seeds_steps_and_streams_differ():
    shape = (32, 64)
    mod = dropped(*shape, twice=True)
    matches = [
        m != 0 for seed, step in ((0, 0), (0, 1), (1, 0)) for m in masks(mod, shape, seed, step)
    ]
    apart = 2 * RATE * (1 - RATE)
    for i, a in enumerate(matches):
        for b in matches[:i]:
            assert abs((a != b).mean() - apart) < 5 * np.sqrt(apart / a.size)
    again = masks(mod, shape, 0, 1)
    assert all(np.array_equal(a, b != 0) for a, b in zip(matches[2:4], again, strict=True))


@pytest.mark.parametrize(
    ("shape", "mesh", "placement"),
    [
        ((10, 6), {"dp": 2}, "S[0]"),
        ((10, 6), {"dp": 3}, "S[0]"),
        ((10, 6), {"tp": 4}, "S[1]"),
        ((10, 6), {"dp": 2, "tp": 3}, "S[0], S[1]"),
        ((10, 6), {"dp": 2, "tp": 3}, "S[0], S[0]"),
        ((3, 5, 7), {"dp": 2, "tp": 2}, "S[2], S[1]"),
    ],
)
def test_a_mask_is_the_same_on_many_devices(shape, mesh, placement):
    """Bit for bit, uneven shards and both axes on one dim among them."""
    mod = dropped(*shape)
    values = [np.random.default_rng(0).normal(size=shape).astype("float32"), np.array(7 << 32)]
    rules = [
        {kind: name, "placement": placement} for kind, name in (("param", "x"), ("value", "out"))
    ]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": rules})
    local = td.distribute(mod, plan)
    assert [int(n) for n in local["main"].params[0].ty.shape] != list(shape)
    (expected,), (result,) = Reference(mod).run(values), td.run(local, values)
    assert np.array_equal(result, expected)
    assert 0 < (result == 0).mean() < 0.6


@I.ir_module
class Small:
    """A dropout between two products."""

    @R.function
    def main(
        x: R.Tensor((8, 4), "float32"),
        u: R.Tensor((4, 6), "float32"),
        v: R.Tensor((6, 2), "float32"),
    ) -> R.Tensor((8, 2), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            h = R.matmul(x, u)
            both = R.nn.dropout(h, 0.25)
            g = both[0]
            y = R.matmul(g, v)
            R.output(y)
        return y


def test_the_gradient_is_cut_by_the_mask_of_the_value():
    step = td.train_step(Small, "mse", rate=1.0)
    rng = np.random.default_rng(0)
    x, t, u, v = (rng.normal(size=s).astype("float32") for s in ((8, 4), (8, 2), (4, 6), (6, 2)))
    state = np.array(5 << 32, "int64")
    loss, new_u, new_v, new_state = Reference(step).run([x, t, u, v, state])
    (mask,) = masks(dropped(8, 6), (8, 6), 5, 0)
    y_grad = 2 * ((x @ u * mask) @ v - t) / t.size
    np.testing.assert_allclose(loss, np.mean(((x @ u * mask) @ v - t) ** 2), rtol=1e-5)
    np.testing.assert_allclose(new_v, v - (x @ u * mask).T @ y_grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new_u, u - x.T @ (y_grad @ v.T * mask), rtol=1e-4, atol=1e-5)
    assert new_state == state + 1
    # Nothing of it is kept but its result.
    assert "dropout" in str(step["main"].attrs["dist.training"]["updated"])


@relax.expr_functor.mutator
class WithDropout(relax.PyExprMutator):
    """Puts a dropout behind values of some names."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def visit_var_binding_(self, binding):
        super().visit_var_binding_(binding)
        if str(binding.var.name) in self.names:
            both = self.builder_.emit(relax.op.nn.dropout(self.visit_expr(binding.var), RATE))
            item = self.builder_.emit(relax.TupleGetItem(both, 0), f"{binding.var.name}_kept")
            self.set_var_remap(binding.var, item)


def gpt(**options) -> ir.IRModule:
    """GPT with dropouts on its probabilities, in its layers and behind its table."""
    sizes = {"layers": 2, "hidden": 16, "heads": 4, "vocab": 32, "seq": 8, "batch": 4}
    mod = td.zoo.gpt(size="tiny", positions=8, **{**sizes, **options})
    functions = {}
    for gv, fn in mod.functions.items():
        functions[gv] = WithDropout({"probs", "gelu"}).visit_expr(fn)
    return ir.IRModule(functions, attrs=mod.attrs)


def kernels(step) -> int:
    """Calls of dropout's kernels in a module's functions."""
    return step.script().count("R.call_tir(cls.dropout_kernel") + step.script().count(
        "R.call_tir(Module.dropout_kernel"
    )


@pytest.mark.parametrize("policy", ["selective", "full", "cut:0.3"])
def test_what_is_made_again_has_the_same_mask(policy):
    model = gpt()
    plain, step = (td.train_step(model, recompute=p, rate=0.5) for p in ("none", policy))
    assert kernels(plain) > 0
    assert (kernels(step) > kernels(plain)) == (policy != "selective")  # tiny products are cheaper
    values = draw_inputs(plain)
    for a, b in zip(Reference(plain).run(values), Reference(step).run(values), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("text", "mesh", "options"),
    nightly_but(
        [
            ("data_parallel", {"dp": 2}, {}),
            ("data_parallel+megatron", {"dp": 2, "tp": 2}, {}),
            ("megatron:sequence=1", {"tp": 2}, {}),
            ("tensor_parallel", {"tp": 3}, {}),
            ("zero:stage=3", {"dp": 2}, {}),
        ],
        {3, 4},
    ),
)
def test_steps_on_many_devices(text, mesh, options):
    step = td.train_step(gpt(**options), optimizer="adam")
    plan = strategy.make_plan(step, text, mesh)
    assert td.verify(step, plan).equal


def test_a_residual_stream_behind_dropouts_is_cut_along_the_sequence():
    """Dropouts between a projection and the residual, as Megatron has them."""
    mod = td.zoo.gpt(
        size="tiny",
        layers=2,
        hidden=16,
        heads=4,
        vocab=32,
        seq=8,
        positions=8,
        batch=4,
        dropout=0.2,
    )
    step = td.train_step(mod, optimizer="adam")
    plan = strategy.make_plan(step, "megatron:sequence=1", {"tp": 2})
    report = td.verify(step, plan)
    assert report.equal
    assert {"all_gather", "reduce_scatter"} <= {each.kind for each in report.collectives}


def test_attention_that_cannot_be_made_again_is_named():
    mod = td.zoo.gpt(size="tiny", layers=1, dropout=0.1)
    with pytest.warns(UserWarning, match="weights of attention probs are stored"):
        td.train_step(mod, recompute="layer=attention")
    plain = td.zoo.gpt(size="tiny", layers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        td.train_step(plain, recompute="layer=attention")


def test_half_precision():
    step = td.train_step(gpt(dtype="bfloat16"), master=True)
    assert td.verify(step, strategy.make_plan(step, "data_parallel", {"dp": 2})).equal


def test_inference_draws_nothing():
    values = draw_inputs(Small)
    x, u, v = values
    np.testing.assert_allclose(Reference(Small).run(values)[0], x @ u @ v, rtol=1e-4, atol=1e-5)


def test_a_mask_that_is_read_is_refused():
    @I.ir_module
    class Reading:
        @R.function
        def main(x: R.Tensor((3,), "float32"), w: R.Tensor((3,), "float32")):
            with R.dataflow():
                s = R.add(x, w)
                both = R.nn.dropout(s, 0.5)
                y = both[0]
                mask = both[1]
                out = R.multiply(y, mask)
                R.output(out)
            return out

    with pytest.raises(ModelError, match=r"DIST0351 main/out: it reads the mask of a dropout"):
        td.train_step(Reading, "mse")


@pytest.mark.parametrize("schedule", [None, "gpipe:micro_batches=1"], ids=["once", "stages"])
@pytest.mark.parametrize(("kind", "data"), [("int64", True), ("float32", True), ("float32", False)])
def test_a_model_without_dropouts_may_have_a_parameter_of_that_name(kind, data, schedule):
    """It is data or a weight like any other, and no state."""

    def model(name):
        types = {"x": ([8, 4], "float32"), name: ([], kind), "w": ([4, 4], "float32")}
        params = [relax.Var(n, relax.TensorType(*ty)) for n, ty in types.items()]
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            with builder.dataflow():
                factor = relax.op.astype(params[1], "float32") if kind == "int64" else params[1]
                product = builder.emit(relax.op.matmul(params[0], params[2]))
                out = builder.emit_output(relax.op.multiply(product, builder.emit(factor)), "out")
            builder.emit_func_output(out)
        mod = builder.get()
        mod["main"] = mod["main"].with_attr("num_input", 1 + data)
        return mod

    texts = [
        td.train_step(model(n), "mse", schedule=schedule).script() for n in ("dropout", "dropped")
    ]
    assert texts[0].replace("dropout", "dropped") == texts[1]


def test_a_model_with_dropouts_has_its_first_parameter_for_data():
    """Where nothing says which are: not the state, which is of an integer type."""
    main = Small["main"].without_attr("num_input")
    mod = ir.IRModule({"main": main.with_attr("dist.param_names", ["h0", "u", "v"])})
    step = td.train_step(mod, "mse")
    assert list(step["main"].attrs["dist.inputs"]) == ["h0", "targets"]
