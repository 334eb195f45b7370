# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""OptimizeCollectives: fewer collectives, the same numbers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvm_distir.transform.lower import LowerDistIR
from tvm_distir.transform.optimize import OptimizeCollectives

sys.path.insert(0, str(Path(__file__).parent))
import lower_harness as h

HEAD = """
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [["a", "b"]]}})
    I.module_global_infos({{"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]}})
    @R.function
    def main({params}):
        with R.dataflow():
{body}
            R.output({outs})
        return {result}
"""


def module(params, body, outs):
    """Level-4 module of inputs ``name: placement`` of shape (8, 8)."""
    inputs = ", ".join(
        f'{n}: R.DTensor((8, 8), "float32", "mesh[0]", "{p}")' for n, p in params.items()
    )
    lines = "\n".join(f"            {line}" for line in body)
    result = outs[0] if len(outs) == 1 else f"({', '.join(outs)})"
    return tvm.script.from_source(
        HEAD.format(params=inputs, body=lines, outs=", ".join(outs), result=result)
    )


def collectives(mod):
    """Names of the collectives, in order."""
    return re.findall(
        r"R\.dist\.(\w+)\(",
        "\n".join(line for line in mod.script().splitlines() if "DTensor" in line and "=" in line),
    )


def called(mod):
    names = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "local_slice", "partial"}
    return [n for n in collectives(mod) if n in names]


CASES = {
    "share": (
        {"x": "S[0], R"},
        [
            'a = R.dist.all_gather(x, "mesh[0]", 0, 0)',
            'b = R.dist.all_gather(x, "mesh[0]", 0, 0)',
            "c = R.add(a, b)",
        ],
        ["c"],
        ["all_gather"],
    ),
    "dead": (
        {"x": "S[0], R"},
        [
            'a = R.dist.all_gather(x, "mesh[0]", 0, 0)',
            'b = R.dist.local_slice(a, "mesh[0]", 1, 0)',
            "c = R.negative(x)",
        ],
        ["c"],
        [],
    ),
    "cancel": (
        {"x": "S[0], R"},
        [
            'a = R.dist.all_gather(x, "mesh[0]", 0, 0)',
            'b = R.dist.local_slice(a, "mesh[0]", 0, 0)',
            "c = R.negative(b)",
        ],
        ["c"],
        [],
    ),
    "cancel_output": (
        {"x": "S[0], R"},
        [
            "n = R.negative(x)",
            'a = R.dist.all_gather(n, "mesh[0]", 0, 0)',
            'b = R.dist.local_slice(a, "mesh[0]", 0, 0)',
        ],
        ["b"],
        [],
    ),
    "no_cancel": (
        {"x": "S[0], R"},
        [
            'a = R.dist.all_gather(x, "mesh[0]", 0, 0)',
            'b = R.dist.local_slice(a, "mesh[0]", 0, 1)',
        ],
        ["b"],
        ["all_gather", "local_slice"],
    ),
    "fuse": (
        {"x": "R, S[1]", "y": "R, S[0]"},
        [
            "m = R.matmul(x, y)",
            'a = R.dist.all_reduce(m, "mesh[0]", [1], "sum")',
            'b = R.dist.local_slice(a, "mesh[0]", 1, 0)',
        ],
        ["b"],
        ["reduce_scatter"],
    ),
    "fuse_one_of_two_axes": (
        {"x": "S[1], S[1]", "y": "S[0], S[0]"},
        [
            "m = R.matmul(x, y)",
            'a = R.dist.all_reduce(m, "mesh[0]", [0, 1], "sum")',
            'b = R.dist.local_slice(a, "mesh[0]", 0, 1)',
        ],
        ["b"],
        ["reduce_scatter", "all_reduce"],
    ),
    "no_fuse_when_read_twice": (
        {"x": "R, S[1]", "y": "R, S[0]"},
        [
            "m = R.matmul(x, y)",
            'a = R.dist.all_reduce(m, "mesh[0]", [1], "sum")',
            'b = R.dist.local_slice(a, "mesh[0]", 1, 0)',
            "c = R.negative(a)",
        ],
        ["b", "c"],
        ["all_reduce", "local_slice"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_optimized(name):
    params, body, outs, want = CASES[name]
    mod = module(params, body, outs)
    before = tvm_ffi.structural_hash(mod)
    new = OptimizeCollectives()(mod)
    assert tvm_ffi.structural_hash(mod) == before
    h.check_module(new)
    assert called(new) == want
    rng = np.random.default_rng(3)
    inputs = [rng.integers(-2, 3, (8, 8)).astype("float32") for _ in params]
    plain, less = (h.run(LowerDistIR()(m), inputs) for m in (mod, new))
    assert len(plain) == len(less) == len(outs)
    for a, b in zip(plain, less):
        np.testing.assert_array_equal(a, b)
