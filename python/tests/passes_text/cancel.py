# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The gather of `n` and the slice of its result along the same axis and dim are gone: `c` reads
`n`.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "cancel"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            n = R.negative(x)
            g = R.dist.all_gather(n, "mesh[0]", 0, 0)
            s = R.dist.local_slice(g, "mesh[0]", 0, 0)
            c = R.exp(s)
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
            n = R.negative(x)
            c = R.exp(n)
            R.output(c)
        return c
