# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The gather of the second layer's weight starts before the first layer runs; `layer` takes what
is in flight and waits for it.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "prefetch{ahead_bytes=100000000}"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        x: R.Tensor((4096, 4096), "float32"),
        w: R.Tensor((2048, 4096), "float32"),
    ):
        with R.dataflow():
            started = R.dist.all_gather_start(w, "mesh[0]", 0, 0)
            whole = R.dist.collective_done(started)
            y = R.matmul(x, whole)
            R.output(y)
        return y

    @R.function
    def main(
        x: R.Tensor((4096, 4096), "float32"),
        w0: R.Tensor((2048, 4096), "float32"),
        w1: R.Tensor((2048, 4096), "float32"),
    ):
        cls = Before
        with R.dataflow():
            a = cls.layer(x, w0)
            b = cls.layer(a, w1)
            R.output(b)
        return b


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        x: R.Tensor((4096, 4096), "float32"),
        gathered: R.Tuple(R.Tensor((4096, 4096), "float32")),
    ):
        R.func_attr({"dist.in_flight": {"params": [1]}})
        with R.dataflow():
            started = gathered[0]
            whole = R.dist.collective_done(started)
            y = R.matmul(x, whole)
            R.output(y)
        return y

    @R.function(private=True)
    def layer_gathers(
        w: R.Tensor((2048, 4096), "float32"),
    ):
        R.func_attr({"dist.in_flight": {"results": [0]}})
        with R.dataflow():
            started = R.dist.all_gather_start(w, "mesh[0]", 0, 0)
            R.output(started)
        return (started,)

    @R.function
    def main(
        x: R.Tensor((4096, 4096), "float32"),
        w0: R.Tensor((2048, 4096), "float32"),
        w1: R.Tensor((2048, 4096), "float32"),
    ):
        cls = After
        with R.dataflow():
            a_gathers = cls.layer_gathers(w0)
            b_gathers = cls.layer_gathers(w1)
            a = cls.layer(x, a_gathers)
            b = cls.layer(a, b_gathers)
            R.output(b)
        return b
