# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`forward` saves its shard `x` in place of the gathered `g`, and `backward` gathers it again."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "regather{axes=[a]}"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def forward(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        with R.dataflow():
            g = R.dist.all_gather(x, "mesh[0]", 0, 0)
            y = R.matmul(g, w)
            R.output(g, y)
        return (y, (g,))

    @R.function(private=True)
    def backward(
        saved: R.Tuple(R.DTensor((8, 8), "float32", "mesh[0]", "R")),
        grad: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        with R.dataflow():
            g = saved[0]
            t = R.permute_dims(g, [1, 0])
            w_grad = R.matmul(t, grad)
            R.output(w_grad)
        return w_grad

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        cls = Before
        with R.dataflow():
            both = cls.forward(x, w)
            y = both[0]
            saved = both[1]
            loss = R.sum(y)
            grad = R.ones_like(y)
            w_grad = cls.backward(saved, grad)
            R.output(loss, w_grad)
        return (loss, w_grad)


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def forward(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        with R.dataflow():
            g = R.dist.all_gather(x, "mesh[0]", 0, 0)
            y = R.matmul(g, w)
            R.output(g, y)
        return (y, (x,))

    @R.function(private=True)
    def backward(
        saved: R.Tuple(R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")),
        grad: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        with R.dataflow():
            remaining = saved[0]
            g = R.dist.all_gather(remaining, "mesh[0]", 0, 0)
            t = R.permute_dims(g, [1, 0])
            w_grad = R.matmul(t, grad)
            R.output(w_grad)
        return w_grad

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
    ):
        cls = After
        with R.dataflow():
            both = cls.forward(x, w)
            y = both[0]
            saved = both[1]
            loss = R.sum(y)
            grad = R.ones_like(y)
            w_grad = cls.backward(saved, grad)
            R.output(loss, w_grad)
        return (loss, w_grad)
