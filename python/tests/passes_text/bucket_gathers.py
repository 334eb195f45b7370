# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Two small gathers become one of both shards, whose parts are put in order again."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "bucket-gathers"


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
            a = R.dist.all_gather(x, "mesh[0]", 0, 0)
            b = R.dist.all_gather(y, "mesh[0]", 0, 0)
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
            x_flat = R.reshape(x, (1, 6))
            y_flat = R.reshape(y, (1, 4))
            bucket = R.concat((x_flat, y_flat), axis=1)
            whole = R.dist.all_gather(bucket, "mesh[0]", 0, 0)
            parts = R.split(whole, [6], axis=1)
            a_flat = parts[0]
            a = R.reshape(a_flat, (4, 3))
            b_flat = parts[1]
            b = R.reshape(b_flat, (8,))
            R.output(a, b)
        return (a, b)
