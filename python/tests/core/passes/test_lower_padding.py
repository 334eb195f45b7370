# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Uneven dims: what stands in the padding never reaches a result."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.core.passes import lower_harness as h
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.support.errors.tree import LoweringError


def D(shape, placement, dtype="float32"):
    return f'R.DTensor({shape}, "{dtype}", "mesh[0]", "{placement}")'


def module(params, body, result, shape="(4,)", count=4, axes='"a"'):
    lines = "\n".join(f"            {line}" for line in body)
    return tvm.script.from_source(f"""
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [[{axes}]]}})
    I.module_global_infos({{"mesh": [R.device_mesh({shape}, I.Range(0, {count}))]}})
    @R.function
    def main({", ".join(params)}):
        with R.dataflow():
{lines}
            R.output({result})
        return {result}
""")


def lower_and_run(mod, *inputs):
    local = LowerDistIR()(LegalizeRedistribute()(mod))
    h.check_module(local)
    (got,) = h.run_virtual(local, inputs)
    return local, got


def draw(*shapes):
    rng = np.random.default_rng(7)
    return [rng.integers(-2, 3, s).astype("float32") for s in shapes]


def test_sum_over_padding_that_an_op_filled():
    """exp(0) = 1 in the padding must not be counted."""
    mod = module(
        [f"x: {D((7, 3), 'S[0]')}"],
        [
            "a = R.nn.softplus(x)",
            "b = R.equal(a, a)",
            'c = R.astype(b, "float32")',
            f"d: {D((3,), 'R')} = R.sum(c, axis=[0])",
        ],
        "d",
    )
    local, got = lower_and_run(mod, *draw((7, 3)))
    np.testing.assert_array_equal(got, np.full(3, 7, "float32"))
    assert "R.where" in local.script()


def test_padding_along_a_later_mesh_axis_is_masked():
    """The first axis shards what stays, the second what is summed."""
    body = [
        "a = R.nn.softplus(x)",
        "b = R.equal(a, a)",
        'c = R.astype(b, "float32")',
        f"d: {D((4,), 'S[0], R')} = R.sum(c, axis=[1])",
    ]
    params = [f"x: {D((4, 5), 'S[0], S[1]')}"]
    _, got = lower_and_run(module(params, body, "d", "(2, 2)", 4, '"a", "b"'), *draw((4, 5)))
    np.testing.assert_array_equal(got, np.full(4, 5, "float32"))


@pytest.mark.parametrize("largest", [True, False])
def test_padding_is_never_among_the_best_integers(largest):
    best = f'R.topk(x, 3, 0, "values", {largest}, "int32")'
    params = [f"x: {D((6,), 'S[0]', 'int32')}"]
    mod = module(params, [f"d: {D((3,), 'R', 'int32')} = {best}"], "d")
    values = np.array([4, -3, 9, 7, -8, 5], np.int32)
    _, got = lower_and_run(mod, values)
    np.testing.assert_array_equal(got, sorted(values, reverse=largest)[:3])


def test_zero_padding_needs_no_mask():
    mod = module(
        [f"x: {D((7, 3), 'S[0]')}"],
        ["a = R.nn.relu(x)", f"d: {D((3,), 'R')} = R.sum(a, axis=[0])"],
        "d",
    )
    (x,) = draw((7, 3))
    local, got = lower_and_run(mod, x)
    np.testing.assert_array_equal(got, np.maximum(x, 0).sum(0))
    assert "R.where" not in local.script()


def test_contraction_over_infinite_padding():
    """1/0 in the padding of one operand times 0 in the other would be NaN."""
    mod = module(
        [f"x: {D((3, 6), 'S[1]')}", f"y: {D((6, 3), 'S[0]')}"],
        ["a = R.divide(y, y)", f"d: {D((3, 3), 'R')} = R.matmul(x, a)"],
        "d",
    )
    x = draw((3, 6))[0]
    y = np.full((6, 3), 2, "float32")
    _, got = lower_and_run(mod, x, y)
    np.testing.assert_array_equal(got, x @ (y / y))


@pytest.mark.parametrize(("op", "fn"), [("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_other_reductions(op, fn):
    mod = module(
        [f"x: {D((6, 3), 'S[0]')}"],
        [
            'a = R.subtract(x, R.dist.const(5.0, R.DTensor((), "float32", "mesh[0]", "R")))',
            f"d: {D((3,), 'R')} = R.{op}(a, axis=[0])",
        ],
        "d",
    )
    (x,) = draw((6, 3))
    _, got = lower_and_run(mod, x)
    np.testing.assert_array_equal(got, fn(x - 5, axis=0))


def test_mean_divides_by_the_real_count():
    mod = module(
        [f"x: {D((6, 4), 'S[0]')}"],
        ["a = R.square(x)", f"d: {D((4,), 'R')} = R.mean(a, axis=[0])"],
        "d",
    )
    (x,) = draw((6, 4))
    np.testing.assert_allclose(lower_and_run(mod, x)[1], (x**2).mean(0), rtol=1e-6)


def test_integer_division_in_the_padding():
    """Zero divisors in the padding would trap."""
    mod = module(
        [f"x: {D((6,), 'S[0]', 'int32')}", f"y: {D((6,), 'S[0]', 'int32')}"],
        ["d = R.floor_divide(x, y)"],
        "d",
    )
    x, y = np.arange(6, dtype="int32"), np.full(6, 2, "int32")
    np.testing.assert_array_equal(lower_and_run(mod, x, y)[1], x // y)


def test_indices_in_the_padding():
    """Computed indices point outside the table where the batch is padded."""
    single = 'R.dist.const(9, R.DTensor((), "int32", "mesh[0]", "R"))'
    mod = module(
        [f"t: {D((10, 2), 'R')}", f"i: {D((6,), 'S[0]', 'int32')}"],
        [
            f"j = R.subtract({single}, i)",
            f"k = R.multiply(j, {single})",
            f"m = R.floor_divide(k, {single})",
            f"d: {D((6, 2), 'S[0]')} = R.take(t, m, axis=0)",
        ],
        "d",
    )
    (t,) = draw((10, 2))
    i = np.arange(6, dtype="int32")
    local, got = lower_and_run(mod, t, i)
    np.testing.assert_array_equal(got, t[9 - i])
    assert "R.where" in local.script()


def test_every_collective_on_uneven_dims():
    """(7, 6) over 4: gather, exchange, scatter and slice, padding cut off and put back."""
    mod = module(
        [f"x: {D((7, 6), 'S[0]')}", f"w: {D((6, 5), 'S[0]')}"],
        [
            'a = R.dist.redistribute(x, "mesh[0]", "S[1]")',
            f"b: {D((7, 5), 'R')} = R.matmul(a, w)",
            'p = R.dist.partial(b, "mesh[0]", [0], "sum")',
            'c = R.dist.redistribute(p, "mesh[0]", "S[1]")',
            'd = R.dist.redistribute(c, "mesh[0]", "S[0]")',
            'e = R.dist.redistribute(d, "mesh[0]", "R")',
            'f = R.dist.redistribute(e, "mesh[0]", "S[0]")',
        ],
        "f",
    )
    x, w = draw((7, 6), (6, 5))
    local, got = lower_and_run(mod, x, w)
    np.testing.assert_array_equal(got, x @ w)
    text = local.script()
    for name in ("all_to_all", "reduce_scatter", "all_gather", "local_slice", "nn.pad"):
        assert f"R.{name}(" in text or f"R.dist.{name}(" in text


def test_a_shard_can_be_all_padding():
    """5 over 4 devices: shards of 2, the last holds nothing."""
    mod = module(
        [f"x: {D((5, 2), 'S[0]')}"],
        ["a = R.exp(x)", f"d: {D((2,), 'R')} = R.max(a, axis=[0])"],
        "d",
    )
    (x,) = draw((5, 2))
    x -= 10
    np.testing.assert_allclose(lower_and_run(mod, x)[1], np.exp(x).max(0), rtol=1e-6)


def test_uneven_and_even_axes_together():
    mod = module(
        [f"x: {D((7, 6), 'S[0], S[1]')}", f"w: {D((6, 5), 'R, S[0]')}"],
        [
            f"a: {D((7, 5), 'S[0], R')} = R.matmul(x, w)",
            f"d: {D((5,), 'R, R')} = R.sum(a, axis=[0])",
        ],
        "d",
        shape="(2, 2)",
        axes='"a", "b"',
    )
    x, w = draw((7, 6), (6, 5))
    np.testing.assert_array_equal(lower_and_run(mod, x, w)[1], (x @ w).sum(0))


def test_an_op_that_cannot_be_uneven_is_refused():
    """Groups of channels must stay together: the rule says even only."""
    specs = [("x", (2, 6, 4), "float32"), ("g", (6,), "float32"), ("b", (6,), "float32")]
    _, call = h.whole_module(specs, lambda x, g, b: relax.op.nn.group_norm(x, g, b, 3, 1, [2]))
    factor = next(f for f in h.rule_for(call).factors if f.ins[0] == 1)
    names = [spec[:1] for spec in specs]
    legal = LegalizeRedistribute()(h.distributed(names, call, h.mesh_of(4), [factor]))
    with pytest.raises(LoweringError) as caught:
        LowerDistIR()(legal)
    assert caught.value.code == "DIST0507"
    assert caught.value.location == "main/value (nn.group_norm)"
    assert "8" in caught.value.remedy


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (4, 6, 3)])
@pytest.mark.parametrize("name", ["mean", "variance", "std"])
def test_statistics_over_two_sharded_dims_divide_by_both(name, shape):
    """Each device holds a part of both dims, which differs between devices where it is uneven."""
    mod = module(
        [f"x: {D(shape, 'S[0], S[1]')}"],
        [f"d: {D(shape[2:], 'R, R')} = R.{name}(x, axis=[0, 1])"],
        "d",
        "(2, 3)",
        6,
        '"a", "b"',
    )
    (x,) = draw(shape)
    expected = {"mean": np.mean, "variance": np.var, "std": np.std}[name](x, (0, 1))
    np.testing.assert_allclose(lower_and_run(mod, x)[1], expected, rtol=1e-5, atol=1e-6)


def _normalized(x, axes, groups=1):
    """Normalize over the dims, and over channels (dim 1) in groups."""
    parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:]) if groups else x
    over = (2, *(axis + 1 for axis in axes)) if groups else axes
    mean, variance = parts.mean(over, keepdims=True), parts.var(over, keepdims=True)
    return ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)


NORMS = {
    "group": ("R.nn.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[2])", 4, 2),
    "instance": ("R.nn.instance_norm(x, g, b, channel_axis=1, axes=[2])", 4, 0),
}


@pytest.mark.parametrize("last", [6, 7])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_groups_over_a_sharded_dim_divide_by_all(name, last):
    """Of several channels, and dims of which each device has a part, which may differ."""
    text, channels, groups = NORMS[name]
    shape = (2, channels, last)
    mod = module(
        [f"x: {D(shape, 'S[2]')}", f"g: {D((channels,), 'R')}", f"b: {D((channels,), 'R')}"],
        [f"d: {D(shape, 'S[2]')} = {text}"],
        "d",
        "(3,)",
        3,
    )
    x, gamma, beta = draw(shape, (channels,), (channels,))
    expected = _normalized(x, (2,), groups) * gamma[:, None] + beta[:, None]
    np.testing.assert_allclose(
        lower_and_run(mod, x, gamma, beta)[1], expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("sizes", "count"), [("(1, 2)", 2), ("(2, 1)", 2), ("(2, 2)", 4)])
def test_windows_take_rows_of_neighbors_along_each_dim_that_is_cut(sizes, count):
    """Also where an axis of one device cuts the other dim."""
    shape = (1, 2, 6, 8)
    pool = "R.nn.max_pool2d(x, pool_size=[3, 3], strides=[1, 1], padding=[1, 1, 1, 1])"
    mod = module(
        [f"x: {D(shape, 'S[2], S[3]')}"],
        [f"d: {D(shape, 'S[2], S[3]')} = {pool}"],
        "d",
        sizes,
        count,
        '"a", "b"',
    )
    (x,) = draw(shape)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    shifts = [padded[:, :, i : i + 6, j : j + 8] for i in range(3) for j in range(3)]
    np.testing.assert_array_equal(lower_and_run(mod, x)[1], np.max(shifts, axis=0))
