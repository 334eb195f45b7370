# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The step reads targets, and gives the loss and `w` less 0.01 times the gradient `x^T (2 (y -
targets) / 8)` of the mean of squares.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "train{loss=mse}"


@I.ir_module
class Before:
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y


@I.ir_module
class After:
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        targets: R.Tensor((4, 2), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr(
            {
                "num_input": 2,
                "dist.inputs": ["x", "targets"],
                "dist.param_names": ["x", "targets", "w"],
                "dist.training": {
                    "again": {},
                    "gradients": {"w": "w_grad"},
                    "states": {},
                    "updated": {"w": "w_updated"},
                },
            }
        )
        with R.dataflow():
            y = R.matmul(x, w)
            apart = R.subtract(y, targets)
            squares = R.square(apart)
            loss = R.mean(squares)
            loss_grad = R.ones((), "float32")
            share = R.divide(loss_grad, R.const(8.0, "float32"))
            squares_grad = R.broadcast_to(share, (4, 2))
            doubled = R.multiply(R.const(2.0, "float32"), apart)
            y_grad = R.multiply(squares_grad, doubled)
            x_transposed = R.permute_dims(x, [1, 0])
            w_grad = R.matmul(x_transposed, y_grad)
            step = R.multiply(R.const(0.01, "float32"), w_grad)
            w_updated = R.subtract(w, step)
            R.output(loss, w_updated)
        return (loss, w_updated)
