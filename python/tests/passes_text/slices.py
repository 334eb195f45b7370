# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The slice moves above `exp` and `add` to their operands, so each device computes its own rows
only.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "slices"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        y: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        with R.dataflow():
            e = R.exp(x)
            s = R.add(e, y)
            c = R.dist.local_slice(s, "mesh[0]", 0, 0)
            R.output(c)
        return c


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        y: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        with R.dataflow():
            x_part = R.dist.local_slice(x, "mesh[0]", 0, 0)
            e = R.exp(x_part)
            y_part = R.dist.local_slice(y, "mesh[0]", 0, 0)
            s = R.add(e, y_part)
            c = s
            R.output(c)
        return c
