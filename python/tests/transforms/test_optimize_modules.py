# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes over collectives on whole modules: functions, bytes, instruments, time."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tests.transforms.optimize_harness import (
    INNER,
    called,
    cut,
    drawn,
    dtensor,
    gather,
    held,
    module,
    reduce,
)
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.interface.command import main
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import UsageError
from tvm_distir.transforms.optimize.fuse import FuseCollectives
from tvm_distir.transforms.optimize.merge import MergeReductions
from tvm_distir.transforms.optimize.moved_collectives import MoveSlices
from tvm_distir.transforms.optimize.passes import OptimizeCollectives
from tvm_distir.transforms.optimize.share import CancelCollectives, ShareCollectives
from tvm_distir.transforms.optimize.traffic import TrafficInstrument, traffic
from tvm_distir.transforms.optimize.unused import RemoveUnused
from tvm_distir.transforms.training.train_step import train_step

LAYER = """
    @R.function(private=True)
    def layer(x: {sharded}, y: {full}, spare: {full}) -> R.Tuple({full}, {full}, {sharded}):
        with R.dataflow():
            a = R.dist.all_gather(x, "mesh[0]", 0, 0)
            b = R.add(a, y)
            c = R.dist.all_gather(x, "mesh[0]", 0, 0)
            d = R.matmul(c, a)
            e = R.abs(x)
            out = (b, d, e)
            R.output(out)
        return out
""".format(sharded=dtensor("S[0], R"), full=dtensor("R, R"))
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
    result = traffic(calling(["q", "r"]))
    (kind,) = result.counts
    assert (kind.op, kind.axes, kind.group_size) == ("all_gather", "a", 2)
    assert result.total_count == 1 + 2 * 2
    # A device of two sends its half of the 256 bytes.
    assert result.total_sent_bytes == 5 * 128
    lowered = traffic(LowerDistIR()(calling(["q", "r"])))
    assert lowered == result


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
    body = ["m = R.matmul(x, y)", f"a = {reduce('m', 1)}", f"b = {cut('a', 1, 0)}"]
    mod = module(INNER, [body], ["b"])
    instrument = TrafficInstrument()
    with tvm.transform.PassContext(instruments=[instrument]):
        FuseCollectives()(mod)
    (change,) = instrument.changes
    assert change.pass_name == "tvm_distir.FuseCollectives"
    # 2 (n-1)/n of the 256 bytes, and (n-1) of the 128 that each device keeps.
    assert (change.before.total_sent_bytes, change.after.total_sent_bytes) == (256, 128)
    assert "1 all_reduce(b): 256 bytes sent" in change.to_text()


@pytest.mark.parametrize("left_out", ["fuse", "slices"])
def test_each_pass_can_be_left_out(left_out):
    body = ["m = R.matmul(x, y)", f"a = {reduce('m', 1)}", "r = R.abs(a)"]
    mod = module(INNER, [[*body, f"b = {cut('r', 1, 0)}"]], ["b"])
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
    mod = td.zoo.gpt(layers=1, hidden=16, heads=4, ffn=32, vocab=16, positions=8, batch=2, seq=8,
                     dtype="float32", nested=0)  # fmt: skip
    mod = train_step(mod)
    level3 = PropagateSharding()(
        AnnotateSharding(make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2}))(mod)
    )
    level4 = LegalizeRedistribute()(h.without_wraps(level3))
    activation_bytes = 2 * 8 * 16 * 4 // 2  # on a device, and what it sends to reduce one of 2

    def along_tp(mod):
        result = traffic(mod)
        (kind,) = [k for k in result.counts if (k.op, k.axes) == ("all_reduce", "tp")]
        return result.counts[kind], result.sent_bytes[kind]

    before, after = along_tp(level4), along_tp(MergeReductions()(level4))
    assert before[0] - after[0] == 2
    assert before[1] - after[1] == 2 * activation_bytes


def test_opt_prints_bytes_before_and_after(tmp_path, capsys):
    body = ["m = R.matmul(x, y)", f"a = {reduce('m', 1)}", f"b = {cut('a', 1, 0)}"]
    path = tmp_path / "mod.py"
    path.write_text(module(INNER, [body], ["b"]).script(show_meta=True))
    passes = (
        "share,merge,slices,gathers,cancel,fuse,unused,lower,bucket,bucket-gathers,split,schedule"
    )
    assert main(["opt", "-p", passes, "--traffic", "--verify-each", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "R.dist.reduce_scatter_start(" in out and "R.dist.collective_done(" in out
    lines = err.splitlines()
    at = lines.index("fuse")
    assert lines[at + 1 : at + 3] == [
        "  before: 1 all_reduce(b): 256 bytes sent",
        "  after:  1 reduce_scatter(b): 128 bytes sent",
    ]
    assert [line for line in lines if not line.startswith(" ")] == passes.split(",")


def test_distribute_buckets_and_overlaps_when_asked():
    mod = train_step(td.zoo.gpt(
        layers=1, hidden=16, heads=4, ffn=32, vocab=16, positions=8, batch=2, seq=8,
        dtype="float32", nested=0,
    ))  # fmt: skip
    plan = make_plan(mod, "data_parallel", {"dp": 2})
    plain = td.distribute(mod, plan)
    tuned = td.distribute(mod, plan, bucket_bytes=2**20, overlap="laptop-cpu")
    relax.analysis.well_formed(tuned)
    check_level(tuned, 5)
    assert traffic(tuned).total_sent_bytes == traffic(plain).total_sent_bytes
    reductions = [
        sum(n for kind, n in traffic(each).counts.items() if kind.op == "all_reduce")
        for each in (plain, tuned)
    ]
    assert reductions[0] > reductions[1] == 1
    text = tuned.script()
    assert text.count("_start(") == text.count("R.dist.collective_done(") > 1
    rng = np.random.default_rng(0)
    inputs = [
        (rng.standard_normal(shape) / 4).astype(dtype)
        if dtype == "float32"
        else rng.integers(0, 8, shape).astype(dtype)
        for shape, dtype in (
            ([int(n) for n in p.ty.shape], str(p.ty.dtype)) for p in mod["main"].params
        )
    ]
    for a, b in zip(td.run(plain, inputs), td.run(tuned, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
