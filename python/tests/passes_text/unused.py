# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The function loses the parameter `w` that it does not read and the gathered result that no
caller reads.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "unused"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            y = R.negative(x)
            g = R.dist.all_gather(x, "mesh[0]", 0, 0)
            R.output(y, g)
        return (y, g)

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        cls = Before
        with R.dataflow():
            pair = cls.layer(x, w)
            c = pair[0]
            g = pair[1]
            R.output(c)
        return c


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            y = R.negative(x)
            R.output(y)
        return (y,)

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        cls = After
        with R.dataflow():
            pair = cls.layer(x)
            c = pair[0]
            R.output(c)
        return c
