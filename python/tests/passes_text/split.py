# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Each collective becomes a start followed by its done, which `schedule` moves apart."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "split"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
    ):
        with R.dataflow():
            g = R.dist.all_gather(x, "mesh[0]", 0, 0)
            c = R.exp(g)
            R.output(c)
        return c


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
    ):
        with R.dataflow():
            started = R.dist.all_gather_start(x, "mesh[0]", 0, 0)
            g = R.dist.collective_done(started)
            c = R.exp(g)
            R.output(c)
        return c
