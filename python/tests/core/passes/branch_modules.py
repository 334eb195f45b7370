# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules with control flow, in TVMScript, and the way of one through all levels."""

from __future__ import annotations

import itertools

import numpy as np
import tvm
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.transforms.optimize.passes import OptimizeCollectives

C, D = 'c: R.Tensor((), "bool")', 'd: R.Tensor((), "bool")'
X, W = 'x: R.Tensor((4, 8), "float32")', 'w: R.Tensor((8, 8), "float32")'

CASES = {
    "matmuls": f"""
def main({C}, {X}, {W}):
    if c:
        a = R.matmul(x, w)
        y = R.nn.relu(a)
    else:
        b = R.add(x, x)
        y = R.matmul(b, w)
    z = R.multiply(y, y)
    return z
""",
    "handed on": f"""
def main({C}, {X}, {W}):
    a = R.matmul(x, w)
    if c:
        y = a
    else:
        y = R.const(np.full((4, 8), 3, "float32"))
    z = R.multiply(y, a)
    u = R.add(z, x)
    return u
""",
    "handed on twice": f"""
def main({C}, {X}, {W}):
    a = R.matmul(x, w)
    if c:
        y = (a, x)
    else:
        y = (x, x)
    z = R.multiply(y[0], y[1])
    return (z, y[1])
""",
    "computed": f"""
def main({X}, {W}):
    s = R.sum(x)
    c = R.greater(s, R.const(0.0, "float32"))
    a = R.matmul(x, w)
    if c:
        y = R.nn.relu(a)
    else:
        y = R.matmul(a, w)
    t = R.sum(y)
    d = R.less(t, R.const(0.0, "float32"))
    if d:
        z = R.negative(y)
    else:
        z = R.matmul(x, w)
    return (z, y)
""",
    "nested tuple": f"""
def main({C}, {X}, {W}):
    if c:
        a = R.matmul(x, w)
        s = R.sum(a, axis=[0])
        y = ((a, s), x)
    else:
        b = R.matmul(x, R.permute_dims(w))
        t = R.sum(x, axis=[0])
        y = ((b, t), b)
    p = y[0]
    q = R.add(p[0], y[1])
    r = R.multiply(q, p[1])
    return (r, p[1])
""",
    "uneven": f"""
def main({C}, x: R.Tensor((5, 7), "float32"), w: R.Tensor((7, 3), "float32")):
    if c:
        a = R.matmul(x, w)
        y = R.sum(a, axis=[1], keepdims=True)
    else:
        y = R.max(x, axis=[1], keepdims=True)
    z = R.add(y, x)
    m = R.sum(z, axis=[0])
    return (z, m)
""",
    "dataflow": f"""
def main({C}, {X}, {W}):
    with R.dataflow():
        k = R.matmul(x, w)
        h = R.add(k, x)
        R.output(h)
    if c:
        with R.dataflow():
            a = R.matmul(h, w)
            g = R.nn.relu(a)
            R.output(g)
        y = g
    else:
        with R.dataflow():
            b = R.add(h, x)
            R.output(b)
        y = R.negative(b)
    with R.dataflow():
        z = R.multiply(y, h)
        R.output(z)
    return z
""",
    "private": f"""
def layer({C}, {X}, {W}) -> R.Tensor((4, 8), "float32"):
    h = R.matmul(x, w)
    if c:
        g = R.nn.relu(h)
        y = R.matmul(g, w)
    else:
        y = R.add(h, x)
    return y

def main({C}, {D}, {X}, {W}, v: R.Tensor((8, 8), "float32")):
    a = cls.layer(c, x, w)
    b = cls.layer(d, a, v)
    if d:
        y = cls.layer(c, b, w)
    else:
        y = b
    return y
""",
    "nested": f"""
def main({C}, {D}, e: R.Tensor((), "bool"), {X}, {W}):
    if c:
        a = R.matmul(x, w)
        if d:
            b = R.matmul(a, w)
            if e:
                i = R.nn.relu(b)
            else:
                s = R.sum(b, axis=[0], keepdims=True)
                i = R.broadcast_to(s, (4, 8))
            j = R.add(i, x)
        else:
            j = R.negative(a)
        y = R.matmul(j, w)
    else:
        y = x
    u = R.nn.relu(y)
    return u
""",
}


def module(text):
    """Parse functions; all but ``main`` are private."""
    lines = ["@I.ir_module", "class M:"]
    for line in text.strip().splitlines():
        if line.startswith("def "):
            lines.append(f"    @R.function{'' if 'def main(' in line else '(private=True)'}")
            lines += [f"    {line}", "        cls = M"]
        else:
            lines.append(f"    {line}")
    return tvm.script.from_source("\n".join(lines), {"I": I, "R": R, "np": np})


def plan_of(mesh, **placements):
    rules = [
        placement if isinstance(placement, dict) else {"param": name, "placement": placement}
        for name, placement in placements.items()
    ]
    return td.Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": rules})


def on(kind, name, mesh, placement, **more):
    """A rule for :func:`two_mesh_plan`."""
    return {kind: name, "mesh": mesh, "placement": placement, **more}


def two_mesh_plan(*rules):
    """A plan for the meshes "one" and "two", of two devices each."""
    meshes = {"one": {"axes": {"a": 2}, "start": 0}, "two": {"axes": {"a": 2}, "start": 2}}
    return td.Plan.from_dict({"schema_version": 1, "meshes": meshes, "rules": list(rules)})


def levels(mod, plan):
    """The module at the levels 3, 4 and 5, each checked, printed and parsed back."""
    matches = [PropagateSharding()(AnnotateSharding(plan)(mod))]
    matches.append(OptimizeCollectives()(LegalizeRedistribute()(matches[0])))
    matches.append(LowerDistIR()(matches[1]))
    for number, single in enumerate(matches, 3):
        check_level(single, number)
        tvm.relax.analysis.well_formed(single)
        again = tvm.script.from_source(single.script(show_meta=True))
        tvm.ir.assert_structural_equal(again, single)
    return matches


def every_way(mod, seed=0):
    """Exact inputs, for every combination of the conditions."""
    params = list(mod["main"].params)
    flags = [i for i, p in enumerate(params) if str(p.ty.dtype) == "bool"]
    inputs = list(draw_inputs(mod, seed=seed, exact=True))
    for values in itertools.product([True, False], repeat=len(flags)):
        for i, value in zip(flags, values):
            inputs[i] = np.array(value)
        yield values, list(inputs)
