# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""An `all_reduce` whose sum each device slices becomes a `reduce_scatter`, with half the bytes on
the wire.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "fuse"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            terms = R.matmul(x, w)
            total = R.dist.all_reduce(terms, "mesh[0]", [0], "sum")
            part = R.dist.local_slice(total, "mesh[0]", 0, 0)
            c = R.negative(part)
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
    ):
        with R.dataflow():
            terms = R.matmul(x, w)
            part = R.dist.reduce_scatter(terms, "mesh[0]", 0, 0, "sum")
            c = R.negative(part)
            R.output(c)
        return c
