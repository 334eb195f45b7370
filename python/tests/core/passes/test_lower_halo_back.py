# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Windows walked backwards over cut dims: transposed convolutions and gradients, run on shards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tvm_distir.core.ops.windows.halo import Window, exchange
from tvm_distir.core.ops.windows.halo_back import spread

nn, grad = relax.op.nn, relax.op.grad
F = "float32"
WEIGHT = {"data_layout": "CNHW", "kernel_layout": "IOHW", "out_layout": "CNHW"}


def spread_rows(kernel, rows, stride=1, pad=(0, 0), more=0, dilation=1, channels=(2, 2), groups=1):
    """A conv2d_transpose of ``rows`` x 3, with windows of ``kernel`` x 2."""
    inner, outer = channels
    specs = [("x", (1, inner, rows, 3), F), ("w", (inner, outer // groups, kernel, 2), F)]
    return specs, lambda x, w: nn.conv2d_transpose(
        x,
        w,
        strides=(stride, 1),
        padding=(pad[0], 0, pad[1], 0),
        output_padding=(more, 0),
        dilation=(dilation, 1),
        groups=groups,
    )


def weight_gradient(kernel, rows, stride=1, pad=(0, 0), dilation=1, groups=1):
    """The convolution that TVM's gradient of a conv2d writes for its weight."""
    places = (rows + sum(pad) - (kernel - 1) * dilation - 1) // stride + 1
    specs = [("x", (2 * groups, 3, rows, 3), F), ("g", (2, 4, places, 2), F)]
    return specs, lambda x, g: nn.conv2d(
        x,
        g,
        strides=(dilation, 1),
        padding=(pad[0], 0, pad[1], 0),
        dilation=(stride, 1),
        groups=groups,
        **WEIGHT,
    )


def pool_gradient(kind, kernel, rows, stride=1, pad=(0, 0), columns=4, **more):
    """Of a pool with windows of ``kernel`` x 2, moved by ``stride`` and 2."""
    sizes = {"pool_size": (kernel, 2), "strides": (stride, 2), "padding": (pad[0], 0, pad[1], 0)}
    shape = (1, 2, rows, columns)
    x = relax.Var("x", relax.TensorType(list(shape), F))
    forward = getattr(nn, f"{kind}_pool2d")(x, **sizes, **more)
    out = relax.BlockBuilder().normalize(forward).ty
    specs = [("g", tuple(int(n) for n in out.shape), F), ("x", shape, F)]
    return specs, lambda g, x: getattr(grad, f"{kind}_pool2d_backward")(g, x, **sizes, **more)


#: Name: specs and call, mesh, and how often ``collective_permute`` is called.
CASES = {
    "transposed 3x3": (spread_rows(3, 8, pad=(1, 1)), (2,), 2),
    "transposed 3x3, returned": (spread_rows(3, 8, pad=(1, 1), channels=(6, 2)), (2,), 2),
    "transposed 3x3, uneven": (spread_rows(3, 7, pad=(1, 1)), (3,), 2),
    "transposed 3x3, uneven, returned": (spread_rows(3, 7, channels=(6, 2)), (3,), 1),
    "doubling, 2x2": (spread_rows(2, 8, 2), (4,), 0),
    "doubling, 2x2, uneven": (spread_rows(2, 7, 2), (2,), 1),
    "doubling, 3x3": (spread_rows(3, 8, 2, (1, 1), 1), (4,), 1),
    "doubling, 4x4": (spread_rows(4, 8, 2, (1, 1)), (4,), 2),
    "doubling, 4x4, returned": (spread_rows(4, 6, 2, (1, 1), channels=(8, 2)), (3,), 2),
    "doubling, 3x3, odd": (spread_rows(3, 7, 2, (1, 1)), (2,), 1),
    "doubling, 3x3, odd, returned": (spread_rows(3, 7, 2, (1, 1), channels=(6, 2)), (3,), 1),
    "windows apart": (spread_rows(1, 6, 3, more=2), (2,), 0),
    "windows apart, padded": (spread_rows(1, 6, 3, (1, 0)), (2,), 0),
    "transposed, dilation 2, two hops": (spread_rows(5, 8, pad=(4, 4), dilation=2), (4,), 4),
    "two hops, returned": (spread_rows(5, 8, pad=(2, 2), dilation=2, channels=(8, 1)), (4,), 4),
    "transposed, groups": (spread_rows(3, 9, pad=(1, 1), channels=(4, 2), groups=2), (3,), 2),
    "transposed, two axes": (spread_rows(3, 8, pad=(1, 1)), (2, 2), 6),
    "transposed, two axes, returned": (spread_rows(3, 8, pad=(1, 1), channels=(6, 2)), (2, 2), 6),
    "transposed, last shard empty": (spread_rows(3, 5, pad=(1, 1)), (4,), 2),
    "conv1d_transpose": (
        (
            [("x", (2, 3, 6), F), ("w", (3, 2, 4), F)],
            lambda x, w: nn.conv1d_transpose(x, w, strides=2, padding=1),
        ),
        (3,),
        2,
    ),
    "conv3d_transpose": (
        (
            [("x", (1, 2, 4, 3, 2), F), ("w", (2, 2, 3, 2, 1), F)],
            lambda x, w: nn.conv3d_transpose(x, w, padding=(1, 0, 0)),
        ),
        (2,),
        2,
    ),
    "weight 3x3": (weight_gradient(3, 8, pad=(1, 1)), (4,), 2),
    "weight 3x3, uneven": (weight_gradient(3, 7, pad=(1, 1)), (3,), 2),
    "weight 3x3, stride 2": (weight_gradient(3, 7, 2, (1, 1)), (2,), 1),
    "weight 2x2, stride 3, rows left over": (weight_gradient(2, 14, 3), (2,), 1),
    "weight 3x3, dilation 2": (weight_gradient(3, 8, pad=(2, 2), dilation=2), (4,), 2),
    "weight 1x1": (weight_gradient(1, 6), (3,), 0),
    "weight 7x7, two hops": (weight_gradient(7, 8, pad=(3, 3)), (4,), 4),
    "weight, groups": (weight_gradient(3, 6, pad=(1, 1), groups=2), (2,), 2),
    "weight, two axes": (weight_gradient(3, 8, pad=(1, 1)), (2, 2), 6),
    "max 2x2": (pool_gradient("max", 2, 8, 2), (4,), 0),
    "max 3x3": (pool_gradient("max", 3, 8, 1, (1, 1)), (2,), 4),
    "max 3x3, stride 2": (pool_gradient("max", 3, 8, 2, (1, 1)), (2,), 2),
    "max 3x3, stride 2, uneven": (pool_gradient("max", 3, 9, 2, (1, 1)), (2,), 2),
    "max, ceil": (pool_gradient("max", 3, 8, 2, ceil_mode=True), (2,), 2),
    "max, two hops": (pool_gradient("max", 5, 8, 1, (2, 2)), (8,), 8),
    "max, two axes": (pool_gradient("max", 3, 16, 2, (1, 1)), (2, 2), 6),
    "average": (pool_gradient("avg", 2, 8, 1, (1, 0), count_include_pad=True), (2,), 1),
    "average 3x3, stride 2": (pool_gradient("avg", 3, 8, 2, (1, 1)), (2,), 1),
    "average of what is there": (pool_gradient("avg", 4, 9, 1, (2, 1)), (3,), 2),
    "average, ceil": (pool_gradient("avg", 3, 8, 2, ceil_mode=True), (3,), 1),
    "average, ragged": (pool_gradient("avg", 4, 14, 3, (1, 1)), (4,), 1),
    "cropped": (([("x", (2, 8, 3), F)], lambda x: nn.pad(x, [0, 0, -1, -1, 0, 0])), (2,), 0),
}


def window_factor(call, dim):
    """The factor that cuts a spatial dim of the first operand."""
    return next(f for f in h.rule_for(call).factors if f.ins[0] == dim)


def permutes(mod):
    """Shapes of what each ``collective_permute`` moves."""
    return [
        tuple(int(n) for n in b.value.ty.shape)
        for block in mod["main"].body.blocks
        for b in block.bindings
        if getattr(getattr(b.value, "op", None), "name", "") == "relax.dist.collective_permute"
    ]


def drawn(specs, seed=0):
    """Exact values; what a max pool chooses among differs."""
    inputs = h.draw(specs, seed)
    if specs[0][0] == "g":
        rng = np.random.default_rng(seed)
        inputs[1] = rng.permutation(inputs[1].size).reshape(inputs[1].shape).astype(F) - 9
    return inputs


def lowered(specs, call, mesh, factors):
    return h.lower(h.distributed(specs, call, h.mesh_of(*mesh), factors))


def compare(name, whole, mod, inputs):
    """Bit-equal; an average is multiplied and divided in another order."""
    got, expected = h.run_virtual(mod, inputs)[0], h.reference(whole, inputs)[0]
    tolerance = 2e-6 if name.startswith("average") else 0
    np.testing.assert_allclose(got, expected, tolerance, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_whole_call(name):
    (specs, make), mesh, count = CASES[name]
    whole, call = h.whole_module(specs, make)
    dim = 1 if name == "cropped" else 2
    mod = lowered(specs, call, mesh, [window_factor(call, dim)] * len(mesh))
    assert len(permutes(mod)) == count
    compare(name, whole, mod, drawn(specs))


@pytest.mark.parametrize(
    "name",
    [
        "transposed 3x3",
        "transposed 3x3, returned",
        "weight 3x3",
        "max 3x3",
        "average 3x3, stride 2",
    ],
)
def test_both_spatial_dims(name):
    """H over one axis, W over the other: corners travel in two steps, there and back."""
    specs, make = CASES[name][0]
    whole, call = h.whole_module(specs, make)
    factors = [window_factor(call, 2), window_factor(call, 3)]
    if not all(h.fits(f, 2) for f in factors):
        factors[1] = None
    mod = lowered(specs, call, (2, 2), factors)
    compare(name, whole, mod, drawn(specs))
    assert factors[1] is not None


@pytest.mark.parametrize("columns", [4, 6])
def test_blocks_with_fewer_windows_than_a_kernel_is_long(columns):
    """TVM's kernel of a max pool's gradient looks beyond a row's last window."""
    sizes = {"pool_size": (1, 3), "padding": (0, 1, 0, 1)}
    specs = [("g", (1, 2, 3, columns), F), ("x", (1, 2, 3, columns), F)]
    whole, call = h.whole_module(specs, lambda g, x: grad.max_pool2d_backward(g, x, **sizes))
    mod = lowered(specs, call, (columns // 2,), [window_factor(call, 3)])
    for seed in range(8):
        compare("max", whole, mod, drawn(specs, seed))


def test_rows_and_cut_channels():
    """A halo along one axis, a sum over input channels along the other; both uneven."""
    specs, make = spread_rows(3, 7, 2, (1, 1), channels=(3, 2))
    whole, call = h.whole_module(specs, make)
    channels = next(f for f in h.rule_for(call).factors if f.kind == "sum")
    mod = lowered(specs, call, (2, 2), [window_factor(call, 2), channels])
    compare("transposed", whole, mod, drawn(specs))


def test_a_weights_gradient_sums_over_samples_rows_and_columns():
    """Along one axis each: one all-reduce over all three, of the kernel's size."""
    specs, make = weight_gradient(3, 8, pad=(1, 1))
    whole, call = h.whole_module(specs, make)
    factors = [window_factor(call, d) for d in (0, 2, 3)]
    assert [f.kind for f in factors] == ["sum"] * 3
    mod = lowered(specs, call, (2, 2, 2), factors)
    compare("weight", whole, mod, drawn(specs))
    assert mod.script().count("all_reduce") == 1


@pytest.mark.parametrize(
    ("channels", "moved"), [((2, 2), [(1, 2, 1, 3)] * 2), ((6, 2), [(1, 2, 1, 4)] * 2)]
)
def test_the_cheaper_way_is_taken(channels, moved):
    """Rows of the operand are fetched, or rows of a result with fewer channels are returned."""
    specs, make = spread_rows(3, 8, pad=(1, 1), channels=channels)
    _, call = h.whole_module(specs, make)
    factor = window_factor(call, 2)
    assert permutes(lowered(specs, call, (2,), [factor])) == moved
    assert factor.comm_bytes == sum(4 * math.prod(s) for s in moved)


def test_a_gradient_reads_the_rows_that_its_forward_op_fetched():
    """3x3 SAME: two rows of data for both, two of the gradient for the data's own."""
    from tvm_distir.transforms.training.autodiff.reverse import reverse

    builder = relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType([1, 2, 8, 4], F))]
    params.append(relax.Var("w", relax.TensorType([2, 2, 3, 3], F)))
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit(nn.conv2d(*params, padding=1))
            loss = builder.emit(relax.op.sum(builder.emit(relax.op.multiply(y, y))))
            bindings = [relax.VarBinding(v, builder.lookup_binding(v)) for v in (y, loss)]
            square = relax.VarBinding(
                bindings[1].value.args[0], builder.lookup_binding(bindings[1].value.args[0])
            )
            result = reverse(builder, [bindings[0], square, bindings[1]], loss, params)
            out = builder.emit_output(relax.Tuple([loss, *result]))
        builder.emit_func_output(out)
    mod = builder.get()
    plan = td.Plan.from_dict(
        {
            "schema_version": 1,
            "mesh": {"rows": 2},
            "rules": [
                {"param": "x", "placement": "S[2]", "stationary": True},
                {"param": "w", "placement": "R", "stationary": True},
            ],
        }
    )
    dist = td.distribute(mod, plan)
    assert permutes(dist) == [(1, 2, 1, 4)] * 4
    assert td.verify(mod, plan, dist=dist, exact=True).equal


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_crop_becomes_padding_of_the_transposed_convolution(ranks):
    """As the gradient of an explicit padding: one row each way, as if it had been 3x3 SAME."""
    builder = relax.BlockBuilder()
    specs = [("x", (2, 2, 16, 6), F), ("w", (2, 2, 3, 3), F)]
    params = [relax.Var(n, relax.TensorType(list(s), d)) for n, s, d in specs]
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit(nn.conv2d_transpose(*params))
            out = builder.emit_output(nn.pad(y, [0, 0, 0, 0, -1, -1, -1, -1]))
        builder.emit_func_output(out)
    mod = builder.get()
    rules = [{"param": "x", "placement": "S[2]"}, {"param": "w", "placement": "R"}]
    rules += [{"value": str(v.name), "placement": "S[2]"} for v in (y, out)]
    plan = {"schema_version": 1, "mesh": {"rows": ranks}, "rules": rules}
    dist = td.distribute(mod, td.Plan.from_dict(plan))
    assert permutes(dist) == [(2, 2, 1, 6)] * 2
    assert "nn.pad" not in dist.script()
    inputs = h.draw(specs)
    np.testing.assert_array_equal(h.run_virtual(dist, inputs)[0], h.reference(mod, inputs)[0])


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (spread_rows(3, 1)[1], "there are no blocks"),
        (pool_gradient("max", 8, 8)[1], "there are no blocks"),
        (pool_gradient("avg", 8, 8)[1], "there are no blocks"),
    ],
)
def test_what_stays_whole_says_why(make, key):
    specs = [spread_rows(3, 1)[0], pool_gradient("max", 8, 8)[0]][make.__qualname__[0] == "p"]
    _, call = h.whole_module(specs, make)
    rule = h.rule_for(call)
    assert any(key in why for why in rule.why_replicated.values())
    assert all(f.ins[0] != 2 for f in rule.factors)


def terms(plan, rank, ranks, extent):
    """Whole-tensor rows, of the short ones, that end up in a rank's buffer; None is filler."""
    rows = []
    for at in range(rank * plan.rows - plan.left, (rank + 1) * plan.rows + plan.right):
        rows.append(at if 0 <= at < extent else None)
    rows = [None] * plan.low + rows + [None] * plan.high
    start = plan.start + (rank * plan.drift + plan.phase) // plan.per
    assert 0 <= start <= start + plan.span <= len(rows) == plan.extended
    return rows[start : start + plan.span]


def test_plans_of_all_small_windows():
    """Every long row finds exactly the short rows that reach it, whatever the extents and ranks."""
    checked = 0
    for kernel in (1, 2, 3, 5):
        for stride, dilation in ((1, 1), (1, 2), (2, 1), (3, 1), (3, 2)):
            for before, after, more in ((0, 0, 0), (1, 1, 0), (0, 2, 0), (3, 0, 1), (2, 2, 2)):
                window = Window(kernel, stride, dilation, before, after)
                for short in range(2, 12):
                    long = (
                        (short - 1) * stride - before - after + window.reach + min(more, stride - 1)
                    )
                    for ranks in (2, 3, 4) if long > 1 else ():
                        plan = spread(window, short, long, ranks)
                        reaches = check(plan, window, short, long, ranks)
                        back = exchange(window, long, short, ranks)
                        assert reaches <= (back.left + back.right + 1) * long
                        checked += 1
    assert checked > 2000


def check(plan, window, short, long, ranks):
    """Walk the local op's rows as the op does; count the contributions."""
    out, result = -(-long // ranks), 0
    for o in range(long):
        rank, local = divmod(o, out)
        rows = terms(plan.fetch, rank, ranks, short)
        shift = (rank * plan.fetch.drift + plan.fetch.phase) % plan.fetch.per if plan.ragged else 0
        place = plan.front + local + shift
        assert local + shift < plan.count
        got = [
            (rows[i], k)
            for i in range(plan.fetch.span)
            for k in range(window.kernel)
            if i * window.stride + k * window.dilation == place and rows[i] is not None
        ]
        want = [
            (i, k)
            for i in range(short)
            for k in range(window.kernel)
            if i * window.stride - window.before + k * window.dilation == o
        ]
        assert got == want
        result += len(got)
    return result
