# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Two small `all_reduce` become one of the flat tensors behind each other, whose result is split
again.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "bucket"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((2, 3), "float32"),
        y: R.Tensor((4,), "float32"),
    ):
        with R.dataflow():
            a = R.dist.all_reduce(x, "mesh[0]", [0], "sum")
            b = R.dist.all_reduce(y, "mesh[0]", [0], "sum")
            R.output(a, b)
        return (a, b)


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((2, 3), "float32"),
        y: R.Tensor((4,), "float32"),
    ):
        with R.dataflow():
            x_flat = R.reshape(x, (6,))
            bucket = R.concat((x_flat, y), axis=0)
            total = R.dist.all_reduce(bucket, "mesh[0]", [0], "sum")
            parts = R.split(total, [6], axis=0)
            a_flat = parts[0]
            a = R.reshape(a_flat, (2, 3))
            b = parts[1]
            R.output(a, b)
        return (a, b)
