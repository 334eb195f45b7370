# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The second, equal `all_gather` of `x` is gone: `c` adds the one value that is gathered to
itself.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "share"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            a = R.dist.all_gather(x, "mesh[0]", 0, 0)
            b = R.dist.all_gather(x, "mesh[0]", 0, 0)
            c = R.add(a, b)
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
            a = R.dist.all_gather(x, "mesh[0]", 0, 0)
            c = R.add(a, a)
            R.output(c)
        return c
