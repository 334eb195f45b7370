# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``If`` on several meshes: the choice is made where its branches are, by execution."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.core.passes.branch_modules import (
    CASES,
    C,
    W,
    X,
    every_way,
    levels,
    module,
    on,
    two_mesh_plan,
)
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.placement import labels_of
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine

V = 'v: R.Tensor((8, 8), "float32")'

FLAG_AWAY = f"""
def main({C}, {X}, {W}, {V}):
    a = R.matmul(x, w)
    b = R.matmul(x, v)
    d = R.logical_not(c)
    if d:
        y = R.nn.relu(a)
    else:
        y = R.matmul(b, w)
    z = R.add(y, y)
    return z
"""


def ifs(mod, entry):
    """The ``If`` of one function."""
    matches = []
    relax.analysis.post_order_visit(
        mod[entry], lambda e: matches.append(e) if isinstance(e, relax.If) else None
    )
    return matches


def equal(mod, chosen, local):
    """Bit-equal for every way of the flags; one way on TVM's own machine too."""
    for number, (_, inputs) in enumerate(every_way(mod)):
        for engine in ("virtual", "threads") if number == 0 else ("virtual",):
            done = td.verify(mod, chosen, engine=engine, exact=True, inputs=inputs, dist=local)
            assert done.equal, (engine, done)


def sent(mod, entry="main"):
    """Shapes of what is sent, in order."""
    return [
        tuple(int(n) for n in b.value.attrs["shape"])
        for block in mod[entry].body.blocks
        for b in block.bindings
        if "dist.send" in str(getattr(b.value, "op", ""))
    ]


FLAG_RULES = {
    "the branches give what is wanted": [
        on("param", "x", "one", "S[0]"),
        on("value", "a", "one", "S[0]"),
        on("value", "b", "one", "S[0]"),
        on("value", "z", "two", "S[0]"),
    ],
    "they give other forms": [
        on("param", "x", "one", "R", stationary=True),
        on("value", "a", "one", "S[1]", stationary=True),
        on("value", "b", "one", "S[0]", stationary=True),
        on("param", "w", "one", "R", stationary=True),
        on("value", "z", "two", "S[1]"),
    ],
    "one is a partial sum": [
        on("param", "x", "one", "S[1]"),
        on("param", "w", "one", "S[0]", stationary=True),
        on("value", "b", "one", "S[1]"),
        on("value", "z", "two", "R"),
    ],
}


@pytest.mark.parametrize("name", sorted(FLAG_RULES))
def test_the_flag_goes_to_the_branches(name):
    """The flag is known on the other mesh: it is sent, and one result comes back."""
    mod = module(FLAG_AWAY)
    chosen = two_mesh_plan(on("value", "d", "two", "R"), *FLAG_RULES[name])
    placed, legal, local = levels(mod, chosen)
    (where,) = (
        b
        for block in placed["main"].body.blocks
        for b in block.bindings
        if "where" in str(getattr(b.value, "op", ""))
    )
    assert list(where.var.ty.device_mesh.shape) == [2]
    assert len(ifs(local, "main_mesh0")) == 1
    assert not ifs(local, "main_mesh1")
    assert sent(legal) == [(), (4, 8)]
    equal(mod, chosen, local)


def test_a_flag_that_comes_from_the_branches_is_not_sent_back():
    """It is known where it was computed; the other mesh does not even hear of it."""
    mod = module(
        f"""
def main({X}, {W}):
    a = R.matmul(x, w)
    s = R.sum(a)
    c = R.greater(s, R.const(0.0, "float32"))
    d = R.logical_not(c)
    if d:
        y = R.nn.relu(a)
    else:
        y = R.negative(a)
    z = R.add(y, y)
    return z
"""
    )
    rules = [on("param", "x", "one", "S[0]"), on("value", "a", "one", "S[0]")]
    chosen = two_mesh_plan(*rules, on("value", "d", "two", "R"))
    _, legal, local = levels(mod, chosen)
    assert len(ifs(local, "main_mesh0")) == 1
    assert sent(legal).count((4, 8)) == 1
    equal(mod, chosen, local)


def test_results_wanted_on_different_meshes():
    """Two results of one ``If``: one flag decides for both, where the branches are."""
    mod = module(
        f"""
def main({C}, {X}, {W}):
    a = R.matmul(x, w)
    d = R.logical_not(c)
    if d:
        y = (a, x)
    else:
        b = R.nn.relu(a)
        y = (b, a)
    p = R.negative(y[0])
    q = R.add(y[1], x)
    return (p, q)
"""
    )
    rules = [on("param", "x", "one", "S[0]"), on("value", "a", "one", "S[0]")]
    chosen = two_mesh_plan(
        *rules,
        on("value", "d", "two", "R"),
        on("value", "p", "two", "S[1]"),
        on("value", "q", "one", "S[0]"),
    )
    *_, local = levels(mod, chosen)
    assert len(ifs(local, "main_mesh0")) == 1
    equal(mod, chosen, local)


def test_a_branch_on_several_meshes_runs_with_the_other():
    """Neither mesh could leave its part out alone: both branches run, the choice is a value's."""
    mod = module(
        f"""
def main({C}, {X}, {W}):
    if c:
        a = R.matmul(x, w)
        b = R.add(a, a)
        y = R.matmul(b, w)
    else:
        y = x
    return y
"""
    )
    chosen = two_mesh_plan(
        on("param", "x", "one", "S[0]"),
        on("value", "a", "two", "S[0]"),
        on("value", "b", "one", "S[0]"),
    )
    *_, local = levels(mod, chosen)
    assert not any(ifs(local, name) for name in ("main_mesh0", "main_mesh1"))
    equal(mod, chosen, local)


def test_branches_on_different_meshes_both_run():
    mod = module(
        f"""
def main({C}, {X}, {W}):
    a = R.matmul(x, w)
    b = R.add(x, x)
    if c:
        y = R.nn.relu(a)
    else:
        y = R.negative(b)
    z = R.add(y, y)
    return z
"""
    )
    chosen = two_mesh_plan(
        on("param", "x", "one", "S[0]"),
        on("value", "a", "one", "S[0]"),
        on("value", "b", "two", "S[1]"),
    )
    *_, local = levels(mod, chosen)
    assert not any(ifs(local, name) for name in ("main_mesh0", "main_mesh1"))
    equal(mod, chosen, local)


def test_the_flag_keeps_its_own_readers():
    """A flag that the other mesh returns is sent there as before, and decides here."""
    mod = module(FLAG_AWAY.replace("return z", "return (z, d)"))
    rules = [on("param", "x", "one", "S[0]"), on("value", "a", "one", "S[0]")]
    chosen = two_mesh_plan(*rules, on("value", "b", "one", "S[0]"), on("value", "d", "two", "R"))
    placed, _, local = levels(mod, chosen)
    flag = placed["main"].ret_ty.fields[1]
    assert labels_of(flag.placement) == (-1,)
    assert len(ifs(local, "main_mesh0")) == 1
    equal(mod, chosen, local)


def test_what_else_reads_a_branch_keeps_both():
    """A level-4 module in which a branch's result is read twice: no ``If``, the same numbers."""
    mod = module(FLAG_AWAY)
    x_cut = {"param": "x", "placement": "S[0]"}
    chosen = td.Plan.from_dict({"schema_version": 1, "mesh": {"a": 2}, "rules": [x_cut]})
    _, legal, local = levels(mod, chosen)
    text = legal.script(show_meta=True)
    line = next(row for row in text.splitlines() if "= R.where(" in row)
    then = line.split("R.where(")[1].split(", ")[1]
    more = line.split("R.where(")[0].replace("y:", "twice:") + f"R.add({then}, {then})"
    edited = text.replace(line, f"{more}\n{line}").replace("R.add(y, y)", "R.add(y, twice)")
    other = LowerDistIR()(tvm.script.from_source(edited))
    check_level(other, 5)
    relax.analysis.well_formed(other)
    assert len(ifs(local, "main")) == 1
    assert not ifs(other, "main")
    for (flag,), inputs in every_way(mod):
        _, x, w, v = inputs
        y = (x @ v) @ w if flag else np.maximum(x @ w, 0)
        (got,) = VirtualEngine().run(other, inputs)
        assert np.array_equal(got, y + 2 * np.maximum(x @ w, 0))


def test_a_branch_that_is_a_constant_lies_where_its_result_is_wanted():
    """One branch hands a value of the second mesh on, the other one is a constant."""
    mod = module(CASES["handed on"])
    chosen = two_mesh_plan(on("value", "a", "two", "S[0]"), on("value", "u", "two", "R"))
    _, _, local = levels(mod, chosen)
    equal(mod, chosen, local)
    again = two_mesh_plan(on("value", "u", "two", "R"))
    equal(mod, again, levels(mod, again)[2])
