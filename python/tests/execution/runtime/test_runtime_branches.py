# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``If`` on the engines of threads, processes and MPI: the bits and the traffic of ``virtual``."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.passes.branch_modules import (
    C,
    D,
    W,
    X,
    every_way,
    module,
    on,
    plan_of,
    two_mesh_plan,
)
from tests.execution.runtime.level5_modules import Level5
from tests.execution.runtime.test_runtime_mpi import needs_mpi
from tvm_distir.core.ir.operators import ops
from tvm_distir.execution.runtime.engines.mpi.engine import MpiEngine
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.threads.engine import ThreadsEngine
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.support import update_type
from tvm_distir.support.errors.tree import EngineError

ENGINES = [
    pytest.param(ThreadsEngine, id="threads"),
    pytest.param(MpiEngine, id="mpi", marks=needs_mpi),
]

NESTED = f"""
def layer({C}, {X}, {W}) -> R.Tensor((4, 8), "float32"):
    h = R.matmul(x, w)
    if c:
        g = R.nn.relu(h)
        y = R.matmul(g, w)
    else:
        y = R.add(h, x)
    return y

def main({C}, {D}, {X}, {W}):
    a = cls.layer(c, x, w)
    if d:
        s = R.sum(a, axis=[0], keepdims=True)
        if c:
            i = R.matmul(s, w)
        else:
            i = R.negative(s)
        y = R.add(i, a)
    else:
        y = R.matmul(a, w)
    z = R.nn.relu(y)
    return (z, a)
"""
FLAG_AWAY = f"""
def main({C}, {X}, {W}):
    a = R.matmul(x, w)
    d = R.logical_not(c)
    if d:
        y = (a, x)
    else:
        b = R.matmul(a, w)
        y = (b, a)
    p = R.negative(y[0])
    q = R.add(y[1], x)
    return (p, q)
"""


def one_mesh():
    mod = module(NESTED)
    return mod, plan_of({"a": 2, "b": 2}, x="S[0], S[1]", w="R, S[0]")


def two_meshes():
    """Each in its own processes: the flag goes one way, a result the other."""
    return module(FLAG_AWAY), two_mesh_plan(
        on("param", "x", "one", "S[0]"),
        on("value", "a", "one", "S[1]"),
        on("value", "d", "two", "R"),
        on("value", "p", "two", "S[1]"),
        on("value", "q", "one", "S[0]"),
    )


# A job of mpi runs one way of the former below, every day.
RUNS = [
    pytest.param(ThreadsEngine, one_mesh, id="threads-one_mesh"),
    pytest.param(ThreadsEngine, two_meshes, id="threads-two_meshes"),
    pytest.param(MpiEngine, one_mesh, id="mpi-one_mesh", marks=[needs_mpi, pytest.mark.nightly]),
    pytest.param(MpiEngine, two_meshes, id="mpi-two_meshes", marks=needs_mpi),
]


@pytest.mark.parametrize(("engine", "case"), RUNS)
def test_every_way_gives_the_bits_of_one_device(engine, case):
    mod, plan = case()
    local = td.distribute(mod, plan)
    reference, here = Reference(mod), engine(60)
    ways = list(every_way(mod))
    if engine is MpiEngine:  # every run starts processes anew
        ways = [ways[0], ways[-1]]
    seen = set()
    for _, inputs in ways:
        virtual = VirtualEngine()
        virtual.run(local, inputs)
        got = here.run(local, inputs)
        assert all(same_bits(a, b) for a, b in zip(got, reference.run(inputs), strict=True))
        assert here.collectives == virtual.collectives
        seen.add(str(here.collectives))
    assert len(seen) > 1 or case is two_meshes  # the branches differ in what they send


def parted():
    """Each rank takes its own branch, against all rules; both branches meet in a collective."""
    mesh = td.device_mesh({"a": 2})
    build = Level5(mesh, axes=[["a"]])

    def branch(name, call):
        var = relax.Var(name, call.ty)
        block = relax.BindingBlock([relax.VarBinding(var, call)])
        seq = relax.SeqExpr([block], var)
        update_type(seq, call.ty)
        return seq

    def body(bb, x):
        mine = bb.emit(ops.axis_index(mesh, 0))
        cond = bb.emit(relax.op.equal(mine, relax.const(0, "int64")), "cond")
        reduce = bb.normalize(ops.all_reduce(x, mesh, [0], "sum"))
        greatest = bb.normalize(ops.all_reduce(x, mesh, [0], "max"))
        value = relax.If(cond, branch("sum", reduce), branch("max", greatest))
        update_type(value, x.ty)
        return bb.emit(value, "y")

    build.entry([("x", (4,), "float32", "R")], [("y", (4,), "float32", "R")], body)
    return build.get()


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_that_take_different_branches_are_named(engine):
    """Planted: the ranks meet in different collectives; the engine says which, and goes on."""
    mod, plan = one_mesh()
    here = engine(10)
    with pytest.raises(EngineError, match=r"rank 1") as caught:
        here.run(parted(), [np.ones(4, "float32")])
    assert all(word in str(caught.value) for word in ("max", "sum")), caught.value
    _, inputs = next(every_way(mod))
    got = here.run(td.distribute(mod, plan), inputs)
    assert all(same_bits(a, b) for a, b in zip(got, Reference(mod).run(inputs), strict=True))
