# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The gather moves below the cast to a narrower type: half the bytes are sent."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "gathers"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            g = R.dist.all_gather(x, "mesh[0]", 0, 0)
            c = R.astype(g, "float16")
            R.output(c)
        return c


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            h = R.astype(x, "float16")
            c = R.dist.all_gather(h, "mesh[0]", 0, 0)
            R.output(c)
        return c
