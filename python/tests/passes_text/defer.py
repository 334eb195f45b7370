# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`main` waits for the reduction of a layer's gradient after it has called the next layer."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "defer"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        g: R.Tensor((8, 4), "float32"),
        x: R.Tensor((8, 4), "float32"),
    ):
        with R.dataflow():
            w_grad = R.einsum((x, g), subscripts="ab,ac->bc")
            started = R.dist.reduce_scatter_start(w_grad, "mesh[0]", 0, 0, "sum")
            x_grad = R.multiply(g, g)
            part = R.dist.collective_done(started)
            flat = R.reshape(part, (8,))
            R.output(x_grad, flat)
        return (x_grad, flat)

    @R.function
    def main(
        g: R.Tensor((8, 4), "float32"),
        x0: R.Tensor((8, 4), "float32"),
        x1: R.Tensor((8, 4), "float32"),
    ):
        cls = Before
        with R.dataflow():
            back1 = cls.layer(g, x1)
            g1 = back1[0]
            w1_grad = back1[1]
            back0 = cls.layer(g1, x0)
            g0 = back0[0]
            w0_grad = back0[1]
            R.output(w0_grad, w1_grad, g0)
        return (w0_grad, w1_grad, g0)


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        g: R.Tensor((8, 4), "float32"),
        x: R.Tensor((8, 4), "float32"),
    ):
        R.func_attr({"dist.in_flight": {"results": [1]}})
        with R.dataflow():
            w_grad = R.einsum((x, g), subscripts="ab,ac->bc")
            started = R.dist.reduce_scatter_start(w_grad, "mesh[0]", 0, 0, "sum")
            x_grad = R.multiply(g, g)
            R.output(x_grad, started)
        return (x_grad, started)

    @R.function
    def main(
        g: R.Tensor((8, 4), "float32"),
        x0: R.Tensor((8, 4), "float32"),
        x1: R.Tensor((8, 4), "float32"),
    ):
        cls = After
        with R.dataflow():
            back1 = cls.layer(g, x1)
            g1 = back1[0]
            back0 = cls.layer(g1, x0)
            started1 = back1[1]
            part1 = R.dist.collective_done(started1)
            w1_grad = R.reshape(part1, (8,))
            g0 = back0[0]
            started0 = back0[1]
            part0 = R.dist.collective_done(started0)
            w0_grad = R.reshape(part0, (8,))
            R.output(w0_grad, w1_grad, g0)
        return (w0_grad, w1_grad, g0)
