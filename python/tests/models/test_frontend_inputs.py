# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Roles and ranges of parameters, and the values drawn for them."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.quick_compilation import quick_machine
from tvm_distir.core.rewriting.entries import keep_entry
from tvm_distir.execution.verification.input_specs import input_specs
from tvm_distir.execution.verification.random_inputs import draw_inputs, is_constant_filled
from tvm_distir.models import zoo
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.support.errors.tree import ModelError

FORUM = """
@I.ir_module
class Module:
    @R.function(private=True)
    def mlp(
        x: R.Tensor((4, 8), "float32"),
        A: R.Tensor((8, 16), "float32"),
        B: R.Tensor((16, 8), "float32"),
    ) -> R.Tensor((4, 8), "float32"):
        a = R.matmul(x, A)
        b = R.nn.relu(a)
        c = R.matmul(b, B)
        return c

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        A: R.Tensor((8, 16), "float32"),
        B: R.Tensor((16, 8), "float32"),
    ) -> R.Tensor((4, 8), "float32"):
        cls = Module
        y = cls.mlp(x, A, B)
        z = cls.mlp(y, A, B)
        return z
"""


def by_name(mod):
    return {spec.name: spec for spec in input_specs(mod)}


def one_call(shapes, build, num_input=None):
    """Module whose main binds ``build(*params)``; shapes: name -> (shape, dtype)."""
    params = [relax.Var(n, relax.TensorType(s, d)) for n, (s, d) in shapes.items()]
    builder = relax.BlockBuilder()
    attrs = {} if num_input is None else {"num_input": num_input}
    with builder.function("main", params, attrs=attrs):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(build(*params)))
        builder.emit_func_output(out)
    return builder.get()


def test_weights_are_found_through_private_functions():
    specs = by_name(from_tvmscript(FORUM))
    assert specs["x"].usage == "data"
    assert (specs["A"].usage, specs["A"].fan_in) == ("weight", 8)
    assert specs["A"].gain == pytest.approx(math.sqrt(2))  # a relu follows
    assert (specs["B"].usage, specs["B"].fan_in, specs["B"].gain) == ("weight", 16, 1.0)


@pytest.mark.parametrize("nested", [0, 1])
def test_roles_of_the_zoo(nested):
    specs = by_name(zoo.gpt(size="tiny", nested=nested))
    assert (specs["input_ids"].usage, specs["input_ids"].high) == ("data", 503)
    assert (specs["wte.weight"].usage, specs["wte.weight"].fan_in) == ("weight", 64)
    assert specs["h.1.ln_2.weight"].usage == "scale"
    assert specs["h.1.attn.q_proj.bias"].usage == "bias"
    assert specs["h.0.mlp.down_proj.weight"].fan_in == 256
    assert specs["h.0.mlp.down_proj.weight"].gain == 0.5  # joins the residual stream
    llama = by_name(zoo.llama(size="tiny", nested=nested))
    assert llama["input_ids"].high == 512
    assert llama["norm.weight"].usage == "scale"
    assert llama["layers.1.self_attn.k_proj.weight"].fan_in == 64


@pytest.mark.parametrize(
    ("shapes", "build", "name", "high"),
    [
        (
            {"d": ((5, 7), "float32"), "i": ((3,), "int64")},
            lambda d, i: relax.op.take(d, i, axis=1),
            "i",
            7,
        ),
        (
            {"d": ((5, 7), "float32"), "i": ((5, 2), "int64")},
            lambda d, i: relax.op.gather_elements(d, i, axis=1),
            "i",
            7,
        ),
        (
            {"d": ((5, 7), "float32"), "i": ((2, 3), "int32")},
            lambda d, i: relax.op.take(d, relax.op.astype(i, "int64"), axis=0),
            "i",
            5,
        ),
        (
            {"d": ((5, 7), "float32"), "i": ((2,), "int64"), "j": ((2,), "int64")},
            lambda d, i, j: relax.op.index_tensor(d, relax.Tuple([i, j])),
            "j",
            7,
        ),
        (
            {"i": ((4,), "int64")},
            lambda i: relax.op.one_hot(
                i,
                relax.prim_value(tirx.FloatImm("float32", 1.0)),
                relax.prim_value(tirx.FloatImm("float32", 0.0)),
                9,
            ),
            "i",
            9,
        ),
        ({"i": ((4,), "int64")}, lambda i: relax.op.astype(i, "float32"), "i", 2),
    ],
)
def test_ranges_of_indices(shapes, build, name, high):
    specs = by_name(one_call(shapes, build))
    assert (specs[name].low, specs[name].high) == (0, high)


def test_num_input_tells_data_from_weights():
    shapes = {"a": ((4, 4), "float32"), "b": ((4, 4), "float32")}
    mod = one_call(shapes, relax.op.add, num_input=1)
    assert [spec.usage for spec in input_specs(mod)] == ["data", "bias"]
    mod = one_call(shapes, relax.op.add)
    assert [spec.usage for spec in input_specs(mod)] == ["data", "data"]
    mod = one_call(shapes, relax.op.matmul, num_input=2)
    assert [spec.usage for spec in input_specs(mod)] == ["data", "data"]


def test_draws_follow_roles_and_seed():
    mod = zoo.gpt(size="tiny", hidden=256, heads=4)
    specs, arrays = input_specs(mod), draw_inputs(mod, seed=3)
    for spec, array in zip(specs, arrays, strict=True):
        assert array.shape == spec.shape
        assert array.dtype == np.dtype(spec.dtype)
        if spec.usage == "weight" and array.size > 10_000:
            assert array.std() == pytest.approx(spec.gain / math.sqrt(spec.fan_in), rel=0.03)
        if spec.usage == "scale":
            assert abs(array.mean() - 1) < 0.1
    ids = arrays[0]
    assert ids.min() >= 0 and ids.max() < 503 and ids.max() > 450
    for left, two in zip(arrays, draw_inputs(mod, seed=3), strict=True):
        np.testing.assert_array_equal(left, two)
    assert not np.array_equal(arrays[1], draw_inputs(mod, seed=4)[1])


def test_exact_draws_are_small_integers():
    for array in draw_inputs(zoo.llama(size="tiny", dtype="bfloat16"), seed=1, exact=True)[1:]:
        assert array.dtype == ml_dtypes.bfloat16
        assert set(np.unique(array.astype("float32"))) <= {-2.0, -1.0, 0.0, 1.0, 2.0}


def test_exact_forum_results_do_not_depend_on_the_order_of_sums():
    mod = from_tvmscript(FORUM)
    x, a, b = draw_inputs(mod, seed=0, exact=True)
    vm = quick_machine(mod)
    got = vm["main"](*[tvm.runtime.tensor(v) for v in (x, a, b)]).numpy()
    order = np.random.default_rng(0).permutation(16)
    want = x
    for _ in range(2):
        want = np.maximum(want @ a, 0)[:, order] @ b[order]
    np.testing.assert_array_equal(got, want)


def test_given_weights_are_used_unless_constant_filled():
    mod = from_tvmscript(FORUM)
    a = np.arange(128, dtype="float64").reshape(8, 16)
    drawn = draw_inputs(mod, seed=0)
    mixed = draw_inputs(mod, seed=0, weights={"A": a, "B": np.full((16, 8), 0.02)})
    np.testing.assert_array_equal(mixed[1], a.astype("float32"))
    np.testing.assert_array_equal(mixed[0], drawn[0])
    np.testing.assert_array_equal(mixed[2], drawn[2])
    with pytest.raises(ModelError, match=r"DIST0340 main/A.*\[8, 15\]"):
        draw_inputs(mod, weights={"A": a[:, :15]})
    assert not is_constant_filled(np.ones(1))


def test_what_cannot_be_drawn_is_refused():
    symbol = tirx.Var("n", "int64")
    mod = one_call({"x": ((symbol, 4), "float32")}, lambda x: relax.op.add(x, x))
    with pytest.raises(ModelError, match="DIST0340 main/x"):
        input_specs(mod)
    with pytest.raises(ModelError, match=r'DIST0341 entry: .*"other".*It has: main'):
        keep_entry(mod, "other")
