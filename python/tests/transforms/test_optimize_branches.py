# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes over collectives in functions with an ``If``: bytes before and after, and the bits."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tests.core.passes.branch_modules import CASES, C, W, X, every_way, plan_of
from tests.core.passes.branch_modules import module as source
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.transforms.optimize.bucket import BucketReductions
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.optimize.moved_collectives import MoveGathers, MoveSlices
from tvm_distir.transforms.optimize.passes import OptimizeCollectives
from tvm_distir.transforms.optimize.traffic import traffic

HEAD = """
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [["a", "b"]]}})
    I.module_global_infos({{"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]}})
    @R.function
    def main({params}):
        R.func_attr({{"dist.io": {{"mesh": 0, "inputs": [{inputs}], "outputs": [{output}]}}}})
{body}
        return (y,)
"""
PORT = '{{"index": {0}, {1}"shape": [{2}], "dtype": "{3}", "placement": "R, R"}}'


def module(count, body):
    """Level-5 module of a flag ``c`` and ``count`` inputs x0, x1 ... of shape (8, 8)."""
    names = [f"x{i}" for i in range(count)]
    ports = [PORT.format(0, '"name": "c", ', "", "bool")]
    ports += [PORT.format(i, f'"name": "{n}", ', "8, 8", "float32") for i, n in enumerate(names, 1)]
    params = ['c: R.Tensor((), "bool")', *(f'{n}: R.Tensor((8, 8), "float32")' for n in names)]
    return tvm.script.from_source(
        HEAD.format(
            params=", ".join(params),
            inputs=", ".join(ports),
            output=PORT.format(0, "", "8, 8", "float32"),
            body="\n".join(f"        {line}" for line in body.strip().splitlines()),
        )
    )


def reduce(x, *axes, op="sum"):
    return f'R.dist.all_reduce({x}, "mesh[0]", {list(axes)}, "{op}")'


def both_ways(mod, count):
    """Outputs for both values of the flag."""
    rng = np.random.default_rng(5)
    inputs = [rng.integers(-2, 3, (8, 8)).astype("float32") for _ in range(count)]
    return [VirtualEngine().run(mod, [np.array(flag), *inputs]) for flag in (True, False)]


def held(mod, count, *passes):
    """Run passes; hold what they promise; give back the new module."""
    before = tvm_ffi.structural_hash(mod)
    new = tvm.transform.Sequential(list(passes))(mod)
    assert tvm_ffi.structural_hash(mod) == before
    check_level(new, 5)
    relax.analysis.well_formed(new)
    tvm.ir.assert_structural_equal(tvm.script.from_source(new.script(show_meta=True)), new)
    assert traffic(new).total_sent_bytes <= traffic(mod).total_sent_bytes
    for left, other in zip(both_ways(new, count), both_ways(mod, count), strict=True):
        np.testing.assert_array_equal(left, other)
    return new


BRANCHES = f"""
s = {reduce("x0", 0)}
t = {reduce("x1", 0)}
if c:
    a = {reduce("x0", 1)}
    b = {reduce("x1", 1)}
    d = R.add(a, b)
    z = R.multiply(d, x0)
else:
    e = {reduce("x2", 1)}
    f = R.multiply(e, e)
    g = R.matmul(x1, x2)
    z = R.add(f, g)
u = R.add(s, t)
y = R.add(u, z)
"""


def names(mod):
    return re.findall(r"= R\.dist\.(\w+)\(", mod.script())


# level 5: each branch is a scope ----------------------------------------------------------


def test_buckets_outside_and_inside():
    """Two before the ``If``, two in one branch: each pair is one; the lone one stays."""
    mod = module(3, BRANCHES)
    new = held(mod, 3, BucketReductions())
    assert names(mod).count("all_reduce") == 5
    assert names(new).count("all_reduce") == 3
    assert traffic(new).total_count == traffic(mod).total_count - 2


def test_a_bucket_never_spans_the_border_of_a_branch():
    """One outside and one inside, one in either branch: nothing to join."""
    mod = module(
        2,
        f"""
s = {reduce("x0", 0)}
if c:
    z = {reduce("x1", 0)}
else:
    z = {reduce("x0", 0)}
y = R.add(s, z)
""",
    )
    assert names(held(mod, 2, BucketReductions())) == names(mod)


def test_an_if_that_reads_a_member_ends_the_bucket():
    mod = module(
        2,
        f"""
s = {reduce("x0", 0)}
if c:
    z = R.negative(s)
else:
    z = s
t = {reduce("x1", 0)}
y = R.add(t, z)
""",
    )
    assert names(held(mod, 2, BucketReductions())).count("all_reduce") == 2


def test_starts_and_dones_stay_in_their_branch():
    """Inside a branch other work runs between the two; outside the ``If`` does."""
    mod = module(3, BRANCHES)
    fast = ScheduleCollectives("laptop-cpu", memory_limit_bytes=2**40)
    new = held(mod, 3, SplitCollectives(), fast)
    assert sorted(names(new)) == ["all_reduce_start"] * 5 + ["collective_done"] * 5
    for scope in scopes(new["main"]):
        order = [str(b.var.name) for b in scope]
        for start in (name for name in order if name.endswith("_start")):
            assert start.removesuffix("_start") in order
    lines = new.script().splitlines()
    at = {word: next(i for i, line in enumerate(lines) if word in line) for word in WATCHED}
    assert at["s_start:"] < at["if c:"] < at[" s:"]
    assert at["e_start:"] < at[" g:"] < at[" e:"]


WATCHED = ("s_start:", "if c:", " s:", "e_start:", " g:", " e:")


def scopes(fn):
    """The bindings of a function's body, and of every branch."""
    waiting = [fn.body]
    while waiting:
        seq = waiting.pop()
        matches = [b for block in seq.blocks for b in block.bindings]
        for b in matches:
            if isinstance(b.value, relax.If):
                waiting += [b.value.true_branch, b.value.false_branch]
        yield matches


def test_nested_branches():
    mod = module(
        2,
        f"""
if c:
    s = R.sum(x0)
    d = R.greater(s, R.const(0.0, "float32"))
    if d:
        e = {reduce("x0", 0)}
        f = {reduce("x1", 0)}
        z = R.add(e, f)
    else:
        z = {reduce("x1", 1)}
    u = R.negative(z)
else:
    u = R.add(x0, x1)
y = R.add(u, x0)
""",
    )
    new = held(mod, 2, BucketReductions(), SplitCollectives(), ScheduleCollectives("laptop-cpu"))
    assert names(new).count("all_reduce_start") == 2


def test_what_an_if_reads_is_not_dropped():
    """Only the branches read these: a pass that prunes must see it."""
    mod = module(
        2,
        f"""
s = {reduce("x0", 0)}
t = R.add(x0, x1)
if c:
    z = R.multiply(s, t)
else:
    e = {reduce("x1", 0)}
    z = R.multiply(e, s)
y = R.negative(z)
""",
    )
    new = held(mod, 2, SplitCollectives())
    assert names(new).count("collective_done") == 2


def test_the_dearer_branch_counts():
    mod = module(
        2,
        f"""
if c:
    y = {reduce("x0", 0)}
else:
    a = {reduce("x0", 0)}
    y = {reduce("a", 1)}
""",
    )
    result = traffic(mod)
    assert result.total_count == 2
    assert result.total_sent_bytes == 2 * 256  # two rings of two devices, half of 512 bytes twice


@pytest.mark.parametrize("name", ["nested tuple", "private", "computed", "dataflow"])
def test_whole_road_with_buckets_and_overlap(name):
    """``distribute`` with all options equals one device, for every way of the flags."""
    mod = source(CASES[name])
    plan = plan_of({"a": 2, "b": 2}, x="S[0], S[1]", w="R, S[0]")
    local = td.distribute(mod, plan, bucket_bytes=2**20, overlap="laptop-cpu")
    check_level(local, 5)
    relax.analysis.well_formed(local)
    assert "_start(" in local.script()
    assert count_ifs(local) >= 1
    for _, inputs in every_way(mod):
        assert td.verify(mod, plan, exact=True, inputs=inputs, dist=local).equal


def count_ifs(mod):
    """How many ``If`` a module holds."""
    matches = [
        b
        for fn in mod.functions.values()
        if isinstance(fn, relax.Function)
        for scope in scopes(fn)
        for b in scope
        if isinstance(b.value, relax.If)
    ]
    return len(matches)


# level 4: branches are functions ----------------------------------------------------------

V = 'v: R.Tensor((8, 8), "float32")'


def on(kind, name, placement):
    return {kind: name, "placement": placement, "stationary": True}


def optimized(text, *rules, make=OptimizeCollectives):
    """A module before and after a level-4 pass, both held to one device; then both lowered."""
    mod = source(text)
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": {"a": 2}, "rules": list(rules)})
    before = tvm.transform.Sequential(
        [AnnotateSharding(plan), PropagateSharding(), LegalizeRedistribute()]
    )(mod)
    mark = tvm_ffi.structural_hash(before)
    after = make()(before)
    assert tvm_ffi.structural_hash(before) == mark
    check_level(after, 4)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(tvm.script.from_source(after.script(show_meta=True)), after)
    assert traffic(after).total_sent_bytes <= traffic(before).total_sent_bytes
    lowered = [LowerDistIR()(each) for each in (before, after)]
    for local in lowered:
        for _, inputs in every_way(mod):
            assert td.verify(mod, plan, exact=True, inputs=inputs, dist=local).equal
    assert traffic(lowered[1]).total_sent_bytes == traffic(after).total_sent_bytes
    assert count_ifs(lowered[1]) == count_ifs(lowered[0]) >= 1
    return before, after


def branch(mod, side):
    return next(fn.script() for gv, fn in mod.functions.items() if str(gv.name_hint).endswith(side))


SLICED = f"""
def main({C}, {X}, {W}, {V}):
    if c:
        a = R.matmul(x, w)
        y = R.nn.relu(a)
    else:
        y = R.negative(x)
    z = R.add(y, y)
    return z
"""


@pytest.mark.parametrize("make", [OptimizeCollectives, MoveSlices])
def test_a_slice_of_the_result_goes_into_both_branches(make):
    """There it meets the all_reduce of one of them, which becomes a reduce_scatter."""
    before, after = optimized(
        SLICED,
        on("param", "x", "R"),
        on("param", "w", "S[0]"),
        on("value", "a", "R"),
        on("value", "y", "R"),
        on("value", "z", "S[0]"),
        make=make,
    )
    assert "local_slice" in before["main"].script()
    assert "local_slice" not in after["main"].script()
    if make is OptimizeCollectives:
        assert "reduce_scatter" in branch(after, "then")
        assert 2 * traffic(after).total_sent_bytes == traffic(before).total_sent_bytes


GATHERED = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function(private=True)
    def main_y_else(v: R.DTensor((8, 8), "float32", "mesh[0]", "R")):
        R.func_attr({"dist.branch": "main_y:else"})
        y = R.negative(v)
        return y
    @R.function(private=True)
    def main_y_then(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
        R.func_attr({"dist.branch": "main_y:then"})
        y = R.nn.relu(x)
        return y
    @R.function
    def main(
        c: R.DTensor((), "bool", "mesh[0]", "R"),
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        v: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        cls = Module
        y_then = cls.main_y_then(x)
        gathered = R.dist.all_gather(y_then, "mesh[0]", 0, 0)
        y_else = cls.main_y_else(v)
        y = R.where(c, gathered, y_else)
        return y
"""


def test_a_gather_of_one_branch_stays_in_it():
    """Below the choice the other branch would have to gather too."""
    mod = tvm.script.from_source(GATHERED)
    after = MoveGathers()(mod)
    check_level(after, 4)
    assert "all_gather" in branch(after, "then")
    assert "all_gather" not in branch(after, "else")
    assert "all_gather" not in after["main"].script()
    local = LowerDistIR()(after)
    assert count_ifs(local) == 1
    rng = np.random.default_rng(3)
    x, v = (rng.integers(-2, 3, (8, 8)).astype("float32") for _ in range(2))
    for flag, want, count in ((True, np.maximum(x, 0), 1), (False, -v, 0)):
        engine = VirtualEngine()
        (got,) = engine.run(local, [np.array(flag), x, v])
        np.testing.assert_array_equal(got, want)
        assert sum(each.count for each in engine.collectives) == count


def test_a_field_that_nobody_reads_costs_nothing():
    """What only computed it goes from both branches, its reduction too; what is read stays."""
    before, after = optimized(
        f"""
def main({C}, {X}, {W}, {V}):
    if c:
        a = R.matmul(x, w)
        r = R.nn.relu(a)
        y = (r, x)
    else:
        b = R.matmul(x, v)
        s = R.nn.relu(b)
        y = (s, s)
    z = R.negative(y[1])
    return z
""",
        on("param", "x", "S[1]"),
        on("param", "w", "S[0]"),
        on("param", "v", "S[0]"),
    )
    assert "all_reduce" in branch(before, "then") or "reduce_scatter" in branch(before, "then")
    assert "matmul" not in branch(after, "then")
    assert "matmul" in branch(after, "else")
    assert len(after["main_y_then"].params) == 1
