# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`x` is sharded along the dim that meets the rows of `w`; the product sums over both devices, so
its result is whole.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "propagate"


@I.ir_module
class Before:
    I.module_attrs({"device_num": 2, "mesh_axes": [["a"]], "mesh_names": ["mesh0"]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w: R.Tensor((16, 32), "float32"),
    ):
        with R.dataflow():
            w_placed = R.dist.annotate_sharding(w, "mesh[0]", "S[0]")
            y = R.matmul(x, w_placed)
            R.output(y)
        return y


@I.ir_module
class After:
    I.module_attrs({"device_num": 2, "mesh_axes": [["a"]], "mesh_names": ["mesh0"]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.DTensor((8, 16), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((16, 32), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            y: R.DTensor((8, 32), "float32", "mesh[0]", "R") = R.matmul(x, w)
            R.output(y)
        return y
