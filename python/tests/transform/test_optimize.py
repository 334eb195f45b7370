# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes over collectives at level 4: fewer and cheaper ones, the same numbers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

import tvm_distir as td
from tvm_distir.analysis import check_level
from tvm_distir.errors import UsageError
from tvm_distir.transform.lower import LowerDistIR
from tvm_distir.transform.optimize import (
    CancelCollectives,
    FuseCollectives,
    MergeReductions,
    MoveGathers,
    MoveSlices,
    OptimizeCollectives,
    RemoveUnused,
    ShareCollectives,
    TrafficInstrument,
    traffic,
)

sys.path.insert(0, str(Path(__file__).parent))
import lower_harness as h

HEAD = """
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [["a", "b"]]}})
    I.module_global_infos({{"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]}})
{functions}
    @R.function
    def main({params}):
        cls = Module
{body}
        return {result}
"""
NAMES = re.compile(
    r"= R\.dist\.(all_reduce|all_gather|reduce_scatter|all_to_all|local_slice|partial)\("
)


def dtensor(placement, shape=(8, 8), dtype="float32"):
    return f'R.DTensor({shape}, "{dtype}", "mesh[0]", "{placement}")'


def module(params, blocks, outs, functions=""):
    """Level-4 module; inputs ``name: placement`` of shape (8, 8), dataflow blocks, results."""
    text = []
    for number, lines in enumerate(blocks):
        let_out = outs if number == len(blocks) - 1 else [lines[-1].split(" ")[0]]
        text += ["        with R.dataflow():", *(f"            {line}" for line in lines)]
        text.append(f"            R.output({', '.join(let_out)})")
    source = HEAD.format(
        params=", ".join(f"{n}: {dtensor(p)}" for n, p in params.items()),
        body="\n".join(text),
        result=outs[0] if len(outs) == 1 else f"({', '.join(outs)})",
        functions=functions,
    )
    return tvm.script.from_source(source)


def called(mod):
    """Names of the collectives, in order."""
    return NAMES.findall(mod.script())


def gather(x, axis, dim):
    return f'R.dist.all_gather({x}, "mesh[0]", {axis}, {dim})'


def cut(x, axis, dim):
    return f'R.dist.local_slice({x}, "mesh[0]", {axis}, {dim})'


def reduce(x, *axes):
    return f'R.dist.all_reduce({x}, "mesh[0]", {list(axes)}, "sum")'


def scatter(x, axis, dim):
    return f'R.dist.reduce_scatter({x}, "mesh[0]", {axis}, {dim}, "sum")'


def exchange(x, axis, join, split):
    return f'R.dist.all_to_all({x}, "mesh[0]", {axis}, {join}, {split})'


INNER = {"x": "R, S[1]", "y": "R, S[0]"}
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


def held(make, mod, inputs):
    """Run a pass; hold what it promises; give back the new module."""
    before = tvm_ffi.structural_hash(mod)
    new = make()(mod)
    assert tvm_ffi.structural_hash(mod) == before
    h.check_module(new)
    check_level(new, 4)
    assert traffic(new).total_wire_bytes <= traffic(mod).total_wire_bytes
    plain, less = (h.run(LowerDistIR()(m), inputs) for m in (mod, new))
    assert len(plain) == len(less)
    for a, b in zip(plain, less):
        np.testing.assert_array_equal(a, b)
    return new


def drawn(params, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, (8, 8)).astype("float32") for _ in params]


@pytest.mark.parametrize("name", CASES)
def test_pass(name):
    make, params, blocks, outs, want = CASES[name]
    new = held(make, module(params, blocks, outs), drawn(params))
    assert called(new) == want


LAYER = """
    @R.function(private=True)
    def layer(x: {sharded}, y: {whole}, spare: {whole}) -> R.Tuple({whole}, {whole}, {sharded}):
        with R.dataflow():
            a = R.dist.all_gather(x, "mesh[0]", 0, 0)
            b = R.add(a, y)
            c = R.dist.all_gather(x, "mesh[0]", 0, 0)
            d = R.matmul(c, a)
            e = R.abs(x)
            out = (b, d, e)
            R.output(out)
        return out
""".format(sharded=dtensor("S[0], R"), whole=dtensor("R, R"))
CALLS = [
    f"g = {gather('x', 0, 0)}",
    "first = cls.layer(x, y, g)",
    "p = first[0]",
    "second = cls.layer(x, p, y)",
    "q = second[2]",
    "r = second[0]",
]


def calling(outs):
    return module({"x": "S[0], R", "y": "R, R"}, [CALLS], outs, LAYER)


def test_traffic_counts_collectives_at_every_call():
    found = traffic(calling(["q", "r"]))
    (kind,) = found.counts
    assert (kind.op, kind.axes, kind.group_size) == ("all_gather", "a", 2)
    assert found.total_count == 1 + 2 * 2
    # A device of two sends its half of the 256 bytes.
    assert found.total_wire_bytes == 5 * 128
    lowered = traffic(LowerDistIR()(calling(["q", "r"])))
    assert lowered == found


def test_unused_results_and_parameters_of_private_functions_go():
    mod = calling(["q", "r"])
    new = held(RemoveUnused, mod, drawn("xy"))
    assert [str(p.name) for p in new["layer"].params] == ["x", "y"]
    assert len(new["layer"].ret_ty.fields) == 2
    assert traffic(new).total_count == 2  # one in each call; what only fed ``spare`` is gone
    assert called(held(OptimizeCollectives, mod, drawn("xy"))) == ["all_gather"]


def test_a_result_that_is_returned_whole_stays():
    mod = module(
        {"x": "S[0], R", "y": "R, R"},
        [["first = cls.layer(x, y, y)", "t = first", "p = first[0]", "q = t[1]"]],
        ["p", "q"],
        LAYER,
    )
    new = held(RemoveUnused, mod, drawn("xy"))
    assert len(new["layer"].ret_ty.fields) == 3


def test_partial_results_of_private_functions_keep_their_numbers():
    partial = {"params": {}, "results": {"1": [1]}}
    fn = f"""
    @R.function(private=True)
    def product(
        x: {dtensor("R, S[1]")}, y: {dtensor("R, S[0]")}
    ) -> R.Tuple({dtensor("R, S[1]")}, {dtensor("R, R")}):
        R.func_attr({{"dist.partial": {partial}}})
        with R.dataflow():
            a = R.abs(x)
            m = R.matmul(x, y)
            out = (a, m)
            R.output(out)
        return out
"""
    body = ["v = cls.product(x, y)", "m = v[1]", f"b = {reduce('m', 1)}"]
    new = held(RemoveUnused, module(INNER, [body], ["b"], fn), drawn("xy"))
    assert dict(new["product"].attrs["dist.partial"]["results"]) == {"0": [1]}


def test_functions_with_partial_results_are_optimised_inside():
    partial = {"params": {}, "results": {"0": [1]}}
    fn = f"""
    @R.function(private=True)
    def product(x: {dtensor("R, S[1]")}, y: {dtensor("R, S[0]")}) -> {dtensor("R, R")}:
        R.func_attr({{"dist.partial": {partial}}})
        with R.dataflow():
            g = {gather("x", 1, 1)}
            s = {cut("g", 1, 1)}
            m = R.matmul(s, y)
            R.output(m)
        return m
"""
    body = ["m = cls.product(x, y)", f"b = {reduce('m', 1)}"]
    new = held(OptimizeCollectives, module(INNER, [body], ["b"], fn), drawn("xy"))
    assert called(new) == ["all_reduce"]


def test_the_instrument_sees_before_and_after():
    params, blocks, outs = CASES["fuse_scatter"][1:4]
    mod = module(params, blocks, outs)
    instrument = TrafficInstrument()
    with tvm.transform.PassContext(instruments=[instrument]):
        FuseCollectives()(mod)
    (change,) = instrument.changes
    assert change.pass_name == "tvm_distir.FuseCollectives"
    # 2 (n-1)/n of the 256 bytes, and (n-1) of the 128 that each device keeps.
    assert (change.before.total_wire_bytes, change.after.total_wire_bytes) == (256, 128)
    assert "1 all_reduce(b): 256 bytes sent" in change.to_text()


@pytest.mark.parametrize("left_out", ["fuse", "slices"])
def test_each_pass_can_be_left_out(left_out):
    params, blocks, outs = CASES["all_slice_meets_reduce"][1:4]
    mod = module(params, blocks, outs)
    new = OptimizeCollectives(without=[left_out])(mod)
    assert called(new) == ["all_reduce", "local_slice"]
    with pytest.raises(UsageError, match="DIST0152"):
        OptimizeCollectives(without=["slcies"])


def test_what_does_not_change_is_the_same_object():
    mod = module({"x": "S[0], R"}, [["a = R.abs(x)", f"b = {gather('a', 0, 0)}"]], ["b"])
    fn = mod["main"]
    for make in (ShareCollectives, CancelCollectives, FuseCollectives, MoveSlices):
        assert make()(mod)["main"].same_as(fn)


def stacked(count):
    """Level-4 module of ``count`` layers in which every pass finds something."""
    body = ["h0 = R.abs(x)"]
    for i in range(count):
        body += [f"m{i} = R.matmul(y, z)", f"n{i} = R.matmul(y, w)"]
        body += [f"a{i} = {reduce(f'm{i}', 1)}", f"b{i} = {reduce(f'n{i}', 1)}"]
        body += [f"c{i} = R.add(a{i}, b{i})", f"s{i} = {cut(f'c{i}', 0, 0)}"]
        body += [f"g{i} = {gather(f'h{i}', 0, 0)}", f"k{i} = {cut(f'g{i}', 0, 0)}"]
        body += [f"h{i + 1} = R.add(k{i}, s{i})"]
    placed = {"x": "S[0], R", "y": "R, S[1]", "z": "R, S[0]", "w": "R, S[0]"}
    return module(placed, [body], [f"h{count}"])


def test_work_grows_with_the_bindings():
    """Counted in Python calls, which no other load on the machine changes."""
    counts = []
    for size in (25, 100):
        mod, counted = stacked(size), [0]

        def count(frame, event, arg, counted=counted):
            counted[0] += event == "call"

        sys.setprofile(count)
        try:
            new = OptimizeCollectives()(mod)
        finally:
            sys.setprofile(None)
        assert called(new).count("all_reduce") == size
        counts.append(counted[0])
    assert counts[1] < 4 * counts[0] * 1.3


def test_reductions_completed_at_once_are_merged_in_training():
    """Six tp all-reduces per layer, as XLA:CPU has, become four."""
    from tvm_distir.frontend.training import train_step
    from tvm_distir.strategy import make_plan
    from tvm_distir.transform import AnnotateSharding, LegalizeRedistribute, PropagateSharding

    mod = td.zoo.gpt(layers=1, hidden=16, heads=4, ffn=32, vocab=16, positions=8, batch=2, seq=8,
                     dtype="float32", nested=0)  # fmt: skip
    mod = train_step(mod)
    level3 = PropagateSharding()(
        AnnotateSharding(make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2}))(mod)
    )
    level4 = LegalizeRedistribute()(h.without_wraps(level3))
    activation_bytes = 2 * 8 * 16 * 4 // 2  # on a device, and what it sends to reduce one of 2

    def along_tp(mod):
        found = traffic(mod)
        (kind,) = [k for k in found.counts if (k.op, k.axes) == ("all_reduce", "tp")]
        return found.counts[kind], found.wire_bytes[kind]

    before, after = along_tp(level4), along_tp(MergeReductions()(level4))
    assert before[0] - after[0] == 2
    assert before[1] - after[1] == 2 * activation_bytes
