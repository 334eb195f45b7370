# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-4 modules written as lines of TVMScript, and what passes over collectives owe."""

from __future__ import annotations

import re

import numpy as np
import tvm
import tvm_ffi

from tests.core.passes import lower_harness as h
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.transforms.optimize.traffic import traffic

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


def module(params, blocks, outs, functions="", shape=(8, 8)):
    """Level-4 module; inputs ``name: placement`` of one shape, dataflow blocks, results."""
    text = []
    for number, lines in enumerate(blocks):
        let_out = outs if number == len(blocks) - 1 else [lines[-1].split(" ")[0]]
        text += ["        with R.dataflow():", *(f"            {line}" for line in lines)]
        text.append(f"            R.output({', '.join(let_out)})")
    source = HEAD.format(
        params=", ".join(f"{n}: {dtensor(p, shape)}" for n, p in params.items()),
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


def held(make, mod, inputs):
    """Run a pass; hold what it promises; give back the new module."""
    before = tvm_ffi.structural_hash(mod)
    new = make()(mod)
    assert tvm_ffi.structural_hash(mod) == before
    h.check_module(new)
    check_level(new, 4)
    assert traffic(new).total_sent_bytes <= traffic(mod).total_sent_bytes
    plain, less = (h.run_virtual(LowerDistIR()(m), inputs) for m in (mod, new))
    assert len(plain) == len(less)
    for a, b in zip(plain, less):
        np.testing.assert_array_equal(a, b)
    return new


def drawn(params, seed=3, shape=(8, 8)):
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, shape).astype("float32") for _ in params]
