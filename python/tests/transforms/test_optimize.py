# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes over collectives at level 4, each on small functions: fewer, the same numbers."""

from __future__ import annotations

import pytest

from tests.transforms.optimize_harness import (
    INNER,
    called,
    cut,
    drawn,
    exchange,
    gather,
    held,
    module,
    reduce,
    scatter,
)
from tvm_distir.transforms.optimize.fuse import FuseCollectives
from tvm_distir.transforms.optimize.merge import MergeReductions
from tvm_distir.transforms.optimize.moved_collectives import MoveGathers, MoveSlices
from tvm_distir.transforms.optimize.passes import OptimizeCollectives
from tvm_distir.transforms.optimize.share import CancelCollectives, ShareCollectives
from tvm_distir.transforms.optimize.unused import RemoveUnused

TWO_AXES = {"x": "S[1], S[1]", "y": "S[0], S[0]"}
PAIR = {"x": "R, S[1]", "y": "R, S[0]", "z": "R, S[1]", "w": "R, S[0]"}
PRODUCTS = ["m = R.matmul(x, y)", "n = R.matmul(z, w)"]

# name: (pass, inputs, bindings per block, results, the collectives that are left)
CASES = {
    "share": (
        ShareCollectives,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", f"b = {gather('x', 0, 0)}", "c = R.add(a, b)"]],
        ["c"],
        ["all_gather"],
    ),
    "share_across_blocks": (
        ShareCollectives,
        {"x": "S[0], R"},
        [
            [f"a = {gather('x', 0, 0)}", "n = R.negative(a)"],
            [f"b = {gather('x', 0, 0)}", "c = R.add(n, b)"],
        ],
        ["c"],
        ["all_gather"],
    ),
    "share_not_along_another_axis": (
        ShareCollectives,
        {"x": "S[0], S[1]"},
        [[f"a = {gather('x', 0, 0)}", f"b = {gather('x', 1, 1)}"]],
        ["a", "b"],
        ["all_gather", "all_gather"],
    ),
    "cancel": (
        CancelCollectives,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", f"b = {cut('a', 0, 0)}", "c = R.negative(b)"]],
        ["c"],
        [],
    ),
    "cancel_output": (
        CancelCollectives,
        {"x": "S[0], R"},
        [["n = R.negative(x)", f"a = {gather('n', 0, 0)}", f"b = {cut('a', 0, 0)}"]],
        ["b"],
        [],
    ),
    "cancel_slice_and_gather": (
        CancelCollectives,
        {"x": "R, R"},
        [[f"a = {cut('x', 0, 0)}", f"b = {gather('a', 0, 0)}", "c = R.negative(b)"]],
        ["c"],
        [],
    ),
    "cancel_past_another_axis": (
        CancelCollectives,
        {"x": "S[0], S[1]"},
        [[f"a = {gather('x', 0, 0)}", f"b = {gather('a', 1, 1)}", f"c = {cut('b', 0, 0)}"]],
        ["c"],
        ["all_gather"],
    ),
    "cancel_not_past_what_others_read": (
        CancelCollectives,
        {"x": "S[0], S[1]"},
        [[f"a = {gather('x', 0, 0)}", f"b = {gather('a', 1, 1)}", f"c = {cut('b', 0, 0)}"]],
        ["b", "c"],
        ["all_gather", "all_gather", "local_slice"],
    ),
    "cancel_exchange": (
        CancelCollectives,
        {"x": "S[0], R"},
        [[f"a = {exchange('x', 0, 0, 1)}", f"b = {exchange('a', 0, 1, 0)}", "c = R.abs(b)"]],
        ["c"],
        [],
    ),
    "cancel_not_past_the_same_dim": (
        CancelCollectives,
        {"x": "S[0], S[0]"},
        [[f"a = {gather('x', 1, 0)}", f"b = {gather('a', 0, 0)}", f"c = {cut('b', 1, 0)}"]],
        ["c"],
        ["all_gather", "all_gather", "local_slice"],
    ),
    "cancel_not_another_dim": (
        CancelCollectives,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", f"b = {cut('a', 0, 1)}"]],
        ["b"],
        ["all_gather", "local_slice"],
    ),
    "fuse_exchange": (
        FuseCollectives,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", f"b = {cut('a', 0, 1)}"]],
        ["b"],
        ["all_to_all"],
    ),
    "fuse_no_exchange_when_read_twice": (
        FuseCollectives,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", f"b = {cut('a', 0, 1)}"]],
        ["a", "b"],
        ["all_gather", "local_slice"],
    ),
    "fuse_gather_of_exchange": (
        FuseCollectives,
        {"x": "S[0], R"},
        [[f"a = {exchange('x', 0, 0, 1)}", f"b = {gather('a', 0, 1)}"]],
        ["b"],
        ["all_gather"],
    ),
    "fuse_scatter": (
        FuseCollectives,
        INNER,
        [["m = R.matmul(x, y)", f"a = {reduce('m', 1)}", f"b = {cut('a', 1, 0)}"]],
        ["b"],
        ["reduce_scatter"],
    ),
    "fuse_slice_before_a_reduction_along_another_axis": (
        FuseCollectives,
        INNER,
        [["m = R.matmul(x, y)", f"a = {reduce('m', 1)}", f"b = {cut('a', 0, 0)}"]],
        ["b"],
        ["local_slice", "all_reduce"],
    ),
    "fuse_scatter_one_of_two_axes": (
        FuseCollectives,
        TWO_AXES,
        [["m = R.matmul(x, y)", f"a = {reduce('m', 0, 1)}", f"b = {cut('a', 0, 1)}"]],
        ["b"],
        ["reduce_scatter", "all_reduce"],
    ),
    "fuse_not_when_read_twice": (
        FuseCollectives,
        INNER,
        [
            [
                "m = R.matmul(x, y)",
                f"a = {reduce('m', 1)}",
                f"b = {cut('a', 1, 0)}",
                "c = R.abs(a)",
            ]
        ],
        ["b", "c"],
        ["all_reduce", "local_slice"],
    ),
    "fuse_reduce": (
        FuseCollectives,
        INNER,
        [["m = R.matmul(x, y)", f"a = {scatter('m', 1, 0)}", f"b = {gather('a', 1, 0)}"]],
        ["b"],
        ["all_reduce"],
    ),
    "fuse_reduce_of_two_axes": (
        FuseCollectives,
        TWO_AXES,
        [["m = R.matmul(x, y)", f"a = {reduce('m', 0)}", f"b = {reduce('a', 1)}"]],
        ["b"],
        ["all_reduce"],
    ),
    "merge": (
        MergeReductions,
        PAIR,
        [[*PRODUCTS, f"a = {reduce('m', 1)}", f"b = {reduce('n', 1)}", "c = R.add(a, b)"]],
        ["c"],
        ["all_reduce"],
    ),
    "merge_three_through_linear_ops": (
        MergeReductions,
        PAIR,
        [
            [
                *PRODUCTS,
                "o = R.matmul(x, w)",
                f"a = {reduce('m', 1)}",
                f"b = {reduce('n', 1)}",
                f"c = {reduce('o', 1)}",
                "d = R.permute_dims(b)",
                "e = R.subtract(a, d)",
                "f = R.negative(e)",
                "g = R.add(c, f)",
            ]
        ],
        ["g"],
        ["all_reduce"],
    ),
    "merge_below_what_is_smaller": (
        MergeReductions,
        INNER,
        [["m = R.matmul(x, y)", f"a = {reduce('m', 1)}", "b = R.sum(a, axis=[0])"]],
        ["b"],
        ["all_reduce"],
    ),
    "merge_not_through_other_ops": (
        MergeReductions,
        PAIR,
        [
            [
                *PRODUCTS,
                f"a = {reduce('m', 1)}",
                f"b = {reduce('n', 1)}",
                "r = R.nn.relu(b)",
                "c = R.add(a, r)",
                "d = R.multiply(a, c)",
            ]
        ],
        ["d"],
        ["all_reduce", "all_reduce"],
    ),
    "merge_not_products": (
        MergeReductions,
        PAIR,
        [[*PRODUCTS, f"a = {reduce('m', 1)}", f"b = {reduce('n', 1)}", "c = R.multiply(a, b)"]],
        ["c"],
        ["all_reduce", "all_reduce"],
    ),
    "merge_not_when_read_twice": (
        MergeReductions,
        PAIR,
        [[*PRODUCTS, f"a = {reduce('m', 1)}", f"b = {reduce('n', 1)}", "c = R.add(a, b)"]],
        ["c", "a"],
        ["all_reduce", "all_reduce"],
    ),
    "merge_not_with_an_unfinished_factor": (
        MergeReductions,
        PAIR,
        [
            [
                *PRODUCTS,
                f"a = {reduce('m', 1)}",
                "p = R.multiply(a, n)",
                "q = R.sum(p, axis=[0])",
                f"b = {reduce('q', 1)}",
            ]
        ],
        ["b"],
        ["all_reduce", "all_reduce"],
    ),
    "merge_scatters": (
        lambda: MergeReductions(scatters=True),
        PAIR,
        [
            [
                *PRODUCTS,
                f"a = {scatter('m', 1, 0)}",
                f"b = {scatter('n', 1, 1)}",
                "d = R.permute_dims(b)",
                "c = R.add(a, d)",
            ]
        ],
        ["c"],
        ["reduce_scatter"],
    ),
    "merge_scatters_only_when_asked": (
        MergeReductions,
        PAIR,
        [[*PRODUCTS, f"a = {scatter('m', 1, 0)}", f"b = {scatter('n', 1, 0)}", "c = R.add(a, b)"]],
        ["c"],
        ["reduce_scatter", "reduce_scatter"],
    ),
    "gather_below_cast": (
        MoveGathers,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", 'b = R.astype(a, "float16")']],
        ["b"],
        ["all_gather"],
    ),
    "gather_below_sum": (
        MoveGathers,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", "b = R.sum(a, axis=[1])", "c = R.abs(b)"]],
        ["c"],
        ["all_gather"],
    ),
    "gathers_below_add": (
        MoveGathers,
        {"x": "S[0], R", "y": "S[0], R", "z": "R, R"},
        [
            [
                f"a = {gather('x', 0, 0)}",
                f"b = {gather('y', 0, 0)}",
                "c = R.add(a, b)",
                "d = R.multiply(c, z)",
            ]
        ],
        ["d"],
        ["local_slice", "all_gather"],
    ),
    "gather_below_maximum_of_its_dim": (
        MoveGathers,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", "b = R.max(a, axis=[0])"]],
        ["b"],
        ["all_reduce"],
    ),
    "gather_not_below_what_is_larger": (
        MoveGathers,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", "b = R.broadcast_to(a, R.shape([4, 8, 8]))"]],
        ["b"],
        ["all_gather"],
    ),
    "gather_not_when_read_twice": (
        MoveGathers,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", "b = R.sum(a, axis=[1])", "c = R.abs(a)"]],
        ["b", "c"],
        ["all_gather"],
    ),
    "gather_above_cast": (
        lambda: MoveGathers(above=True),
        {"x": "S[0], R"},
        [["n = R.astype(x, 'float64')", f"a = {gather('n', 0, 0)}", "b = R.matmul(a, a)"]],
        ["b"],
        ["all_gather"],
    ),
    "slice_above": (
        MoveSlices,
        {"x": "R, R", "y": "R, R"},
        [["a = R.add(x, y)", "b = R.permute_dims(a)", f"c = {cut('b', 0, 0)}"]],
        ["c"],
        ["local_slice", "local_slice"],
    ),
    "slice_not_when_read_twice": (
        MoveSlices,
        {"x": "R, R", "y": "R, R"},
        [["a = R.add(x, y)", f"c = {cut('a', 0, 0)}"]],
        ["a", "c"],
        ["local_slice"],
    ),
    "all_slice_meets_reduce": (
        OptimizeCollectives,
        INNER,
        [["m = R.matmul(x, y)", f"a = {reduce('m', 1)}", "r = R.abs(a)", f"b = {cut('r', 1, 0)}"]],
        ["b"],
        ["reduce_scatter"],
    ),
    "all_gather_meets_slice": (
        OptimizeCollectives,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", "r = R.abs(a)", f"b = {cut('r', 0, 0)}"]],
        ["b"],
        [],
    ),
    "unused": (
        RemoveUnused,
        {"x": "S[0], R"},
        [[f"a = {gather('x', 0, 0)}", "n = R.abs(a)", "c = R.negative(x)"]],
        ["c"],
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pass(name):
    make, params, blocks, outs, want = CASES[name]
    new = held(make, module(params, blocks, outs), drawn(params))
    assert called(new) == want


def test_a_gather_stays_above_what_cannot_be_cut_evenly():
    """Three rows of the result come from two rows of the operand each: no halves."""
    body = [f"a = {gather('x', 0, 0)}", "b = R.reshape(a, R.shape([3, 8]))"]
    mod = module({"x": "S[0], R"}, [body], ["b"], shape=(6, 4))
    new = held(MoveGathers, mod, drawn("x", shape=(6, 4)))
    assert called(new) == ["all_gather"]
    assert "b_shard" not in new.script()
