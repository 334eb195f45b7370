# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Halo exchange: windows over a cut dim, lowered and run, equal the whole call bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tvm_distir.core.ops.windows.halo import Window, exchange, most_blocks
from tvm_distir.support.errors.tree import LoweringError

nn = relax.op.nn
F = "float32"


def conv(kernel, rows, stride=1, pad=(0, 0), dilation=1, groups=1):
    """A conv2d over ``rows`` x 4, windows of ``kernel`` x 3 rows and columns."""
    specs = [("x", (1, 4, rows, 4), F), ("w", (4, 4 // groups, kernel, 3), F)]
    return specs, lambda x, w: nn.conv2d(
        x,
        w,
        strides=(stride, 1),
        padding=(pad[0], 1, pad[1], 1),
        dilation=(dilation, 1),
        groups=groups,
    )


def pool(op, kernel, rows, stride=1, pad=(0, 0), dtype=F, **more):
    return [("x", (1, 2, rows, 4), dtype)], lambda x: op(
        x, (kernel, 2), strides=(stride, 2), padding=(pad[0], 0, pad[1], 0), **more
    )


#: Name: specs and call, the cut dim, mesh, and how often ``collective_permute`` is called.
CASES = {
    "3x3 SAME": (conv(3, 8, pad=(1, 1)), 2, (2,), 2),
    "3x3 SAME, 4 ranks": (conv(3, 8, pad=(1, 1)), 2, (4,), 2),
    "3x3 VALID": (conv(3, 10), 2, (2,), 2),
    "3x3 SAME, uneven": (conv(3, 7, pad=(1, 1)), 2, (2,), 2),
    "3x3 SAME, last shard empty": (conv(3, 5, pad=(1, 1)), 2, (4,), 2),
    "1x1 stride 2, uneven": (conv(1, 9, stride=2), 2, (2,), 0),
    "2x2 in front": (conv(2, 8, pad=(1, 0)), 2, (2,), 1),
    "2x2 behind": (conv(2, 8, pad=(0, 1)), 2, (2,), 1),
    "3x3 stride 2": (conv(3, 8, stride=2, pad=(1, 1)), 2, (2,), 1),
    "3x3 stride 2, uneven": (conv(3, 7, stride=2, pad=(1, 1)), 2, (3,), 1),
    "3x3 dilation 2": (conv(3, 8, pad=(2, 2), dilation=2), 2, (2,), 2),
    "5x5 dilation 2, two hops": (conv(5, 8, pad=(4, 4), dilation=2), 2, (4,), 4),
    "5x5 groups": (conv(5, 9, pad=(2, 2), groups=2), 2, (3,), 2),
    "7x7 depthwise, two hops": (conv(7, 8, pad=(3, 3), groups=4), 2, (4,), 4),
    "7x7 stride 2": (conv(7, 16, stride=2, pad=(3, 3)), 2, (4,), 2),
    "asymmetric": (conv(3, 9, pad=(2, 3)), 2, (3,), 2),
    "padding beyond a shard": (conv(3, 6, pad=(4, 4)), 2, (3,), 2),
    "two axes on one dim": (conv(3, 8, pad=(1, 1)), 2, (2, 2), 6),
    "two axes, two hops": (conv(7, 12, pad=(3, 3)), 2, (3, 2), 8),
    "conv1d": (
        ([("x", (2, 3, 8), F), ("w", (4, 3, 3), F)], lambda x, w: nn.conv1d(x, w, padding=1)),
        2,
        (2,),
        2,
    ),
    "conv3d": (
        (
            [("x", (1, 2, 6, 4, 3), F), ("w", (2, 2, 3, 3, 1), F)],
            lambda x, w: nn.conv3d(x, w, padding=(1, 1, 0)),
        ),
        2,
        (2,),
        2,
    ),
    "NHWC, cut along W": (
        (
            [("x", (1, 3, 8, 2), F), ("w", (3, 3, 2, 4), F)],
            lambda x, w: nn.conv2d(x, w, padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO"),
        ),
        2,
        (2,),
        2,
    ),
    "int8": (
        (
            [("x", (1, 4, 7, 4), "int8"), ("w", (2, 4, 3, 3), "int8")],
            lambda x, w: nn.conv2d(x, w, padding=1, out_dtype="int32"),
        ),
        2,
        (2,),
        2,
    ),
    "max pool": (pool(nn.max_pool2d, 3, 8, 2, (1, 1)), 2, (2,), 1),
    "max pool, uneven": (pool(nn.max_pool2d, 3, 7, 1, (1, 1)), 2, (3,), 2),
    "max pool, ceil": (pool(nn.max_pool2d, 3, 8, 2, ceil_mode=True), 2, (2,), 1),
    "max pool, int8": (pool(nn.max_pool2d, 3, 7, 1, (1, 1), "int8"), 2, (2,), 2),
    "max pool, float16": (pool(nn.max_pool2d, 3, 8, 1, (1, 1), "float16"), 2, (2,), 2),
    "average pool": (pool(nn.avg_pool2d, 2, 8), 2, (2,), 1),
    "average pool, padded": (
        pool(nn.avg_pool2d, 4, 8, 2, (1, 1), count_include_pad=True),
        2,
        (2,),
        2,
    ),
    "average of what is there": (pool(nn.avg_pool2d, 3, 8, 1, (1, 1)), 2, (2,), 2),
    "average of what is there, stride 2": (pool(nn.avg_pool2d, 3, 8, 2, (1, 1)), 2, (4,), 1),
    "average of what is there, long": (pool(nn.avg_pool2d, 5, 16, 1, (2, 2)), 2, (2, 2), 6),
    "average of what is there, behind": (pool(nn.avg_pool2d, 3, 6, 1, (0, 2)), 2, (3,), 1),
    "average of what is there, two axes": (
        pool(nn.avg_pool2d, 3, 8, 1, (1, 1), dilation=(1, 1)),
        2,
        (2, 2),
        6,
    ),
    "pad": (([("x", (2, 8, 3), F)], lambda x: nn.pad(x, [0, 0, 1, 1, 0, 1])), 1, (2,), 0),
    "pad, 4 ranks": (([("x", (2, 8, 3), F)], lambda x: nn.pad(x, [0, 0, 1, 1, 0, 0])), 1, (4,), 1),
    "pad in front, value": (
        ([("x", (2, 7, 3), F)], lambda x: nn.pad(x, [0, 0, 3, 0, 1, 0], pad_value=-1.5)),
        1,
        (2,),
        1,
    ),
}


def halo_factor(call, dim):
    return next(f for f in h.rule_for(call).factors if f.kind == "halo" and f.ins[0] == dim)


def permutes(mod):
    """Shapes of what each ``collective_permute`` moves."""
    return [
        tuple(int(n) for n in b.value.ty.shape)
        for block in mod["main"].body.blocks
        for b in block.bindings
        if getattr(getattr(b.value, "op", None), "name", "") == "relax.dist.collective_permute"
    ]


def lowered(specs, call, mesh, factors):
    return h.lower(h.distributed(specs, call, h.mesh_of(*mesh), factors))


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_whole_call(name):
    (specs, make), dim, mesh, count = CASES[name]
    whole, call = h.whole_module(specs, make)
    mod = lowered(specs, call, mesh, [halo_factor(call, dim)] * len(mesh))
    assert len(permutes(mod)) == count
    inputs = h.draw(specs)
    np.testing.assert_array_equal(h.run_virtual(mod, inputs)[0], h.reference(whole, inputs)[0])


def test_negative_values_and_nothing_else_in_a_max_pool():
    """Zeros that arrive at the border would win."""
    specs, make = pool(nn.max_pool2d, 3, 8, 1, (1, 1))
    whole, call = h.whole_module(specs, make)
    mod = lowered(specs, call, (2,), [halo_factor(call, 2)])
    inputs = [-1 - np.abs(x) for x in h.draw(specs)]
    np.testing.assert_array_equal(h.run_virtual(mod, inputs)[0], h.reference(whole, inputs)[0])


def test_infinite_pad_value():
    """As ONNX exporters pad in front of a max pool; such attributes have no text at level 4."""
    specs = [("x", (2, 7, 3), F)]
    whole, call = h.whole_module(
        specs, lambda x: nn.pad(x, [0, 0, 2, 1, 0, 0], pad_value=float("-inf"))
    )
    factor = halo_factor(call, 1)
    mod = h.lower(h.distributed(specs, call, h.mesh_of(2), [factor]), False)
    inputs = h.draw(specs)
    np.testing.assert_array_equal(h.run_virtual(mod, inputs)[0], h.reference(whole, inputs)[0])


def test_both_spatial_dims():
    """H over one axis, W over the other: corners travel in two steps."""
    specs = [("x", (1, 2, 6, 8), F), ("w", (2, 2, 3, 5), F)]
    whole, call = h.whole_module(specs, lambda x, w: nn.conv2d(x, w, padding=(1, 2)))
    mod = lowered(specs, call, (2, 2), [halo_factor(call, 2), halo_factor(call, 3)])
    assert permutes(mod) == [(1, 2, 1, 4)] * 2 + [(1, 2, 5, 2)] * 2
    inputs = h.draw(specs)
    np.testing.assert_array_equal(h.run_virtual(mod, inputs)[0], h.reference(whole, inputs)[0])


def test_corners_of_an_average_that_counts_no_padding():
    """Both dims cut: windows at a corner average fewer rows and fewer columns."""
    specs = [("x", (1, 2, 8, 6), F)]
    whole, call = h.whole_module(specs, lambda x: nn.avg_pool2d(x, (5, 3), padding=(2, 1)))
    mod = lowered(specs, call, (2, 3), [halo_factor(call, 2), halo_factor(call, 3)])
    inputs = h.draw(specs)
    np.testing.assert_array_equal(h.run_virtual(mod, inputs)[0], h.reference(whole, inputs)[0])


def test_an_average_in_blocks_too_small_is_refused():
    """The rule does not offer them; placements written by hand are told so."""
    specs, make = pool(nn.avg_pool2d, 5, 8, 1, (2, 2))
    _, call = h.whole_module(specs, make)
    factor = halo_factor(call, 2)
    assert factor.size == 2 and not factor.uneven
    with pytest.raises(LoweringError) as caught:
        lowered(specs, call, (4,), [factor])
    assert caught.value.code == "DIST0507"


def test_rows_and_cut_input_channels():
    """Halo along one axis, a sum of terms along the other; both uneven."""
    specs = [("x", (1, 3, 7, 4), F), ("w", (2, 3, 3, 3), F)]
    whole, call = h.whole_module(specs, lambda x, w: nn.conv2d(x, w, padding=1))
    channels = next(f for f in h.rule_for(call).factors if f.kind == "sum")
    mod = lowered(specs, call, (2, 2), [halo_factor(call, 2), channels])
    inputs = h.draw(specs)
    np.testing.assert_array_equal(h.run_virtual(mod, inputs)[0], h.reference(whole, inputs)[0])


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_are_those_of_one_row_each_way(ranks):
    """3x3 SAME over H: ``comm_bytes`` is what the two permutes move."""
    specs, make = conv(3, 8, pad=(1, 1))
    _, call = h.whole_module(specs, make)
    factor = halo_factor(call, 2)
    moved = permutes(lowered(specs, call, (ranks,), [factor]))
    assert moved == [(1, 4, 1, 4)] * 2
    assert factor.comm_bytes == sum(4 * math.prod(s) for s in moved)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (pool(nn.avg_pool2d, 3, 8, 2, ceil_mode=True, count_include_pad=True)[1], "ceil_mode"),
        (pool(nn.avg_pool2d, 2, 8, 1, (1, 1))[1], "average fewer rows"),
        (pool(nn.avg_pool2d, 9, 8, 1, (4, 4))[1], "even blocks are too small"),
        (pool(nn.max_pool2d, 8, 8)[1], "no blocks"),
    ],
)
def test_what_stays_whole_says_why(make, key):
    _, call = h.whole_module([("x", (1, 2, 8, 4), F)], make)
    rule = h.rule_for(call)
    assert key in rule.why_replicated["in0.dim2"]
    assert (
        key in rule.why_replicated["out0.dim2"]
        or rule.why_replicated["out0.dim2"] == "its extent is 1"
    )
    assert all(f.ins[0] != 2 for f in rule.factors)


def padded_chain(batch_op, rows, mesh, labels, pads=(0, 0, 0, 0, 1, 1, 1, 1)):
    """nn.pad, then an op that reads it without padding of its own, through all passes."""
    specs = [("x", (2, 2, rows, 6), F), ("w", (2, 2, 3, 3), F)]
    builder = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(list(s), d)) for n, s, d in specs]
    with builder.function("main", params):
        with builder.dataflow():
            padded = builder.emit(nn.pad(params[0], list(pads)))
            out = builder.emit_output(batch_op(padded, params[1]))
        builder.emit_func_output(out)
    mod = builder.get()
    plan = td.Plan.from_dict(
        {
            "schema_version": 1,
            "mesh": {f"a{i}": n for i, n in enumerate(mesh)},
            "rules": [
                {"param": "x", "placement": labels},
                {"param": "w", "placement": ", ".join(["R"] * len(mesh)), "stationary": True},
                {"value": str(padded.name), "placement": labels},
                {"value": str(out.name), "placement": labels},
            ],
        }
    )
    return mod, td.distribute(mod, plan), h.draw(specs)


@pytest.mark.parametrize("ranks", [2, 4])
def test_explicit_padding_moves_one_row_each_way(ranks):
    """nn.pad by one, then 3x3 without padding: as if it were 3x3 SAME."""
    mod, local, inputs = padded_chain(nn.conv2d, 16, (ranks,), "S[2]")
    assert permutes(local) == [(2, 2, 1, 6)] * 2
    assert "nn.pad" not in local.script()
    np.testing.assert_array_equal(h.run_virtual(local, inputs)[0], h.reference(mod, inputs)[0])


def test_explicit_padding_of_an_average():
    """Counted like the pool's own padding; along a dim that is not cut as well."""
    mod, local, inputs = padded_chain(
        lambda x, _: nn.avg_pool2d(x, (4, 4), (2, 2), count_include_pad=True), 8, (2,), "S[2]"
    )
    assert permutes(local) == [(2, 2, 1, 6)] * 2
    np.testing.assert_array_equal(h.run_virtual(local, inputs)[0], h.reference(mod, inputs)[0])


def test_padding_that_no_window_takes_over():
    """A max pool pads with another number, and no window walks the batch: both are kept."""
    for op, pads in (
        (lambda x, _: nn.max_pool2d(x, (3, 3)), (0, 0, 0, 0, 1, 1, 1, 1)),
        (lambda x, w: nn.conv2d(x, w), (0, 1, 0, 0, 1, 1, 0, 0)),
    ):
        mod, local, inputs = padded_chain(op, 8, (2,), "S[2]", pads)
        inputs[0] = -np.abs(inputs[0])
        assert len(permutes(local)) == 2
        np.testing.assert_array_equal(h.run_virtual(local, inputs)[0], h.reference(mod, inputs)[0])


def local_rows(plan, rank, ranks, extent):
    """Whole-tensor rows that end up in a rank's window buffer; None is filler."""
    rows = []
    for at in range(rank * plan.rows - plan.left, (rank + 1) * plan.rows + plan.right):
        rows.append(at if 0 <= at < extent else None)
    rows = [None] * plan.low + rows + [None] * plan.high
    start = plan.start + rank * plan.drift
    assert 0 <= start <= start + plan.span <= len(rows)
    return rows[start : start + plan.span]


def test_plans_of_all_small_windows():
    """Every result row finds exactly its operand rows, whatever the extents and ranks."""
    checked = 0
    for kernel in (1, 2, 3, 5, 7):
        for stride, dilation in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)):
            for before, after in ((0, 0), (1, 1), (0, 1), (2, 0), (3, 3), (5, 1)):
                window = Window(kernel, stride, dilation, before, after)
                for extent in range(2, 18):
                    result = (extent + before + after - window.reach) // stride + 1
                    for ranks in (2, 3, 4, 5) if result > 1 else ():
                        plan = exchange(window, extent, result, ranks)
                        out = -(-result // ranks)
                        for o in range(result):
                            rank, first = o // out, o * stride - before
                            rows = local_rows(plan, rank, ranks, extent)
                            for k in range(kernel):
                                place = first + k * dilation
                                want = place if 0 <= place < extent else None
                                assert rows[(o % out) * stride + k * dilation] == want
                        checked += 1
    assert checked > 5000


def test_blocks_of_a_factor_suit_both_extents():
    """A number of ranks that divides the size divides both extents, or is one axis' alone."""
    for extent in range(2, 60):
        for result in range(2, 60):
            size = most_blocks(extent, result)
            assert size <= min(extent, result)
            for ranks in range(2, size):
                if size % ranks == 0:
                    assert extent % ranks == result % ranks == 0
