# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`unrelated` runs while the gather is in flight: it stands between the start and the done."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "schedule"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        y: R.Tensor((8, 8), "float32"),
    ):
        with R.dataflow():
            started = R.dist.all_gather_start(x, "mesh[0]", 0, 0)
            g = R.dist.collective_done(started)
            e = R.exp(g)
            unrelated = R.matmul(y, y)
            c = R.add(e, unrelated)
            R.output(c)
        return c


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        y: R.Tensor((8, 8), "float32"),
    ):
        with R.dataflow():
            started = R.dist.all_gather_start(x, "mesh[0]", 0, 0)
            unrelated = R.matmul(y, y)
            g = R.dist.collective_done(started)
            e = R.exp(g)
            c = R.add(e, unrelated)
            R.output(c)
        return c
