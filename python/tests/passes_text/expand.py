# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Each stage is a program of its own: the first sends `y` and receives its gradient, the second
the other way round.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "expand"


@I.ir_module
class Before:
    I.module_attrs(
        {
            "device_num": 1,
            "mesh_axes": [["a"]],
            "mesh_names": ["mesh0"],
            "dist.pipeline": {
                "schedule": {"kind": "gpipe", "stages": 2, "micro_batches": 1},
                "inputs": ["x", "w"],
                "data_count": 1,
                "sliced": ["x"],
                "carried": [],
                "outputs": ["loss", "w"],
                "stages": [
                    {
                        "function": "stage0",
                        "params": ["gradient:0", "x", "w"],
                        "results": ["activation:0", "w"],
                    },
                    {
                        "function": "stage1",
                        "params": ["activation:0"],
                        "results": ["loss", "gradient:0"],
                    },
                ],
                "sums": [],
            },
        }
    )
    I.module_global_infos({"mesh": [R.device_mesh((1,), I.Range(0, 1))]})

    @R.function(private=True)
    def product(
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 1})
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function(private=True)
    def product_backward(
        grad: R.Tensor((4, 2), "float32"),
        x: R.Tensor((4, 8), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 1})
        with R.dataflow():
            turned = R.permute_dims(x, [1, 0])
            w_grad = R.matmul(turned, grad)
            R.output(w_grad)
        return w_grad

    @R.function(private=True)
    def sum_grad(
        term0: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 1})
        return (term0,)

    @R.function(private=True)
    def total(
        y: R.Tensor((4, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 1})
        with R.dataflow():
            loss = R.sum(y)
            R.output(loss)
        return loss

    @R.function(private=True)
    def total_backward(
        grad: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 1})
        with R.dataflow():
            y_grad = R.broadcast_to(grad, (4, 2))
            R.output(y_grad)
        return y_grad

    @R.function(private=True)
    def sum_loss(
        term0: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 1})
        return (term0,)

    @R.function
    def stage0(
        grad: R.Tensor((4, 2), "float32"),
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr(
            {
                "num_input": 2,
                "dist.role": {
                    "params": ["gradient:0", "x", "w"],
                    "results": ["activation:0", "w"],
                    "values": ["y", "w_updated"],
                },
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {
                            "name": "grad",
                            "index": 0,
                            "dtype": "float32",
                            "shape": [4, 2],
                            "placement": "R",
                        },
                        {
                            "name": "x",
                            "index": 1,
                            "dtype": "float32",
                            "shape": [4, 8],
                            "placement": "R",
                        },
                        {
                            "name": "w",
                            "index": 2,
                            "dtype": "float32",
                            "shape": [8, 2],
                            "placement": "R",
                        },
                    ],
                    "outputs": [
                        {"index": 0, "dtype": "float32", "shape": [4, 2], "placement": "R"},
                        {"index": 1, "dtype": "float32", "shape": [8, 2], "placement": "R"},
                    ],
                },
            }
        )
        cls = Before
        with R.dataflow():
            y = cls.product(x, w)
            w_grad = cls.product_backward(grad, x)
            sums = cls.sum_grad(w_grad)
            w_sum = sums[0]
            w_updated = R.subtract(w, w_sum)
            R.output(y, w_updated)
        return (y, w_updated)

    @R.function
    def stage1(
        y: R.Tensor((4, 2), "float32"),
    ):
        R.func_attr(
            {
                "num_input": 1,
                "dist.role": {
                    "params": ["activation:0"],
                    "results": ["loss", "gradient:0"],
                    "values": ["loss", "y_grad"],
                },
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {
                            "name": "y",
                            "index": 0,
                            "dtype": "float32",
                            "shape": [4, 2],
                            "placement": "R",
                        }
                    ],
                    "outputs": [
                        {"index": 0, "dtype": "float32", "shape": [], "placement": "R"},
                        {"index": 1, "dtype": "float32", "shape": [4, 2], "placement": "R"},
                    ],
                },
            }
        )
        cls = Before
        with R.dataflow():
            term = cls.total(y)
            y_grad = cls.total_backward(R.const(1.0, "float32"))
            sums = cls.sum_loss(term)
            loss = sums[0]
            R.output(loss, y_grad)
        return (loss, y_grad)


@I.ir_module
class After:
    I.module_attrs(
        {
            "device_num": 2,
            "mesh_axes": [["a"], ["a"]],
            "mesh_names": ["mesh0_0", "mesh0_1"],
        }
    )
    I.module_global_infos({"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), [1])]})

    @R.function(private=True)
    def product(
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 1})
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function(private=True)
    def product_backward(
        grad: R.Tensor((4, 2), "float32"),
        x: R.Tensor((4, 8), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 1})
        with R.dataflow():
            turned = R.permute_dims(x, [1, 0])
            w_grad = R.matmul(turned, grad)
            R.output(w_grad)
        return w_grad

    @R.function(private=True)
    def sum_grad(
        term0: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 1})
        return (term0,)

    @R.function(private=True)
    def total(
        y: R.Tensor((4, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 1})
        with R.dataflow():
            loss = R.sum(y)
            R.output(loss)
        return loss

    @R.function(private=True)
    def total_backward(
        grad: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 1})
        with R.dataflow():
            y_grad = R.broadcast_to(grad, (4, 2))
            R.output(y_grad)
        return y_grad

    @R.function(private=True)
    def sum_loss(
        term0: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 1})
        return (term0,)

    @R.function(pure=False)
    def main_mesh0(
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {
                            "name": "x",
                            "index": 0,
                            "dtype": "float32",
                            "shape": [4, 8],
                            "placement": "R",
                            "role": "data",
                        },
                        {
                            "name": "w",
                            "index": 1,
                            "dtype": "float32",
                            "shape": [8, 2],
                            "placement": "R",
                            "role": "weight",
                        },
                    ],
                    "outputs": [
                        {
                            "name": "w",
                            "index": 1,
                            "dtype": "float32",
                            "shape": [8, 2],
                            "placement": "R",
                        }
                    ],
                },
                "dist.training": {"states": {}, "updated": {"w": "w"}},
            }
        )
        cls = After
        y = cls.product(x, w)
        sent = R.dist.send(
            y,
            device_mesh="mesh[0]",
            peer_mesh="mesh[1]",
            placement="R",
            peer_placement="R",
            shape=[4, 2],
            tag=0,
        )
        y_grad = R.dist.recv(
            device_mesh="mesh[0]",
            peer_mesh="mesh[1]",
            placement="R",
            peer_placement="R",
            shape=[4, 2],
            dtype="float32",
            tag=1,
        )
        w_grad = cls.product_backward(y_grad, x)
        sums = cls.sum_grad(w_grad)
        w_sum = sums[0]
        w_updated = R.subtract(w, w_sum)
        return w_updated

    @R.function(pure=False)
    def main_mesh1():
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 1,
                    "inputs": [],
                    "outputs": [
                        {
                            "name": "loss",
                            "index": 0,
                            "dtype": "float32",
                            "shape": [],
                            "placement": "R",
                        }
                    ],
                },
                "dist.training": {"states": {}, "updated": {"w": "w"}},
            }
        )
        cls = After
        y = R.dist.recv(
            device_mesh="mesh[1]",
            peer_mesh="mesh[0]",
            placement="R",
            peer_placement="R",
            shape=[4, 2],
            dtype="float32",
            tag=0,
        )
        term = cls.total(y)
        y_grad = cls.total_backward(R.const(1.0, "float32"))
        sums = cls.sum_loss(term)
        sent = R.dist.send(
            y_grad,
            device_mesh="mesh[1]",
            peer_mesh="mesh[0]",
            placement="R",
            peer_placement="R",
            shape=[4, 2],
            tag=1,
        )
        loss = sums[0]
        return loss
