# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The passes in turn: the equal gathers are shared, then the gather and the slice cancel, and what
is unread goes.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "optimize"


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
            a = R.dist.all_gather(n, "mesh[0]", 0, 0)
            b = R.dist.all_gather(n, "mesh[0]", 0, 0)
            s = R.dist.local_slice(b, "mesh[0]", 0, 0)
            unread = R.exp(a)
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
