# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Terms are added on each device before one `all_reduce`, where two sums were reduced and then
added.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "merge"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        v: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            a_terms = R.matmul(x, w)
            a = R.dist.all_reduce(a_terms, "mesh[0]", [0], "sum")
            b_terms = R.matmul(x, v)
            b = R.dist.all_reduce(b_terms, "mesh[0]", [0], "sum")
            c = R.add(a, b)
            R.output(c)
        return c


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        v: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            a_terms = R.matmul(x, w)
            b_terms = R.matmul(x, v)
            c_terms = R.add(a_terms, b_terms)
            c = R.dist.all_reduce(c_terms, "mesh[0]", [0], "sum")
            R.output(c)
        return c
