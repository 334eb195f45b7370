# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-5 modules written as lines of TVMScript, and what passes over them owe."""

from __future__ import annotations

import re

import numpy as np
import tvm
import tvm_ffi

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tvm_distir.core.analysis.levels import check_level

HEAD = """
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [["a", "b"]]}})
    I.module_global_infos({{"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]}})
    @R.function
    def main({params}):
        R.func_attr({{"dist.io": {{"mesh": 0, "inputs": [{inputs}], "outputs": [{outputs}]}}}})
        with R.dataflow():
{body}
            R.output({outs})
        return ({result})
"""


def module(count, body, outs):
    """Level-5 module of ``count`` inputs x0, x1 ... of shape (8, 8), whole on every device."""
    names = [f"x{i}" for i in range(count)]

    def item(index, name=None):
        label = f'"name": "{name}", ' if name else ""
        return (
            f'{{"index": {index}, {label}"shape": [8, 8], "dtype": "float32", "placement": "R, R"}}'
        )

    return tvm.script.from_source(
        HEAD.format(
            params=", ".join(f'{n}: R.Tensor((8, 8), "float32")' for n in names),
            inputs=", ".join(item(i, n) for i, n in enumerate(names)),
            outputs=", ".join(item(i) for i in range(len(outs))),
            body="\n".join(f"            {line}" for line in body),
            outs=", ".join(outs),
            result=", ".join(outs) + ("," if len(outs) == 1 else ""),
        )
    )


def reduce(x, *axes, op="sum"):
    return f'R.dist.all_reduce({x}, "mesh[0]", {list(axes)}, "{op}")'


def draw(count):
    rng = np.random.default_rng(5)
    return [rng.integers(-2, 3, (8, 8)).astype("float32") for _ in range(count)]


def ops_of(mod):
    """Short names of what the bindings of main call, in order."""
    return re.findall(r"= R\.(?:dist\.|nn\.)?(\w+)\(", mod.script())


def held(run_pass, mod, count, engines=("virtual",)):
    """Run a pass; hold what it promises; compare the results bit for bit."""
    before = tvm_ffi.structural_hash(mod)
    new = run_pass(mod)
    assert tvm_ffi.structural_hash(mod) == before
    h.check_module(new)
    check_level(new, 5)
    expected = td.run(mod, draw(count), engine="virtual")
    for engine in engines:
        for a, b in zip(expected, td.run(new, draw(count), engine=engine), strict=True):
            np.testing.assert_array_equal(a, b)
    return new
