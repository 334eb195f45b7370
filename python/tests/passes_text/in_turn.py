# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One function calls the units of both stages for micro-batch 0 and 1, and the update reads the
sum of both gradients.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "in-turn"


@I.ir_module
class Before:
    I.module_attrs(
        {
            "dist.pipeline": {
                "schedule": {"kind": "gpipe", "stages": 2, "micro_batches": 2},
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
            }
        }
    )

    @R.function(private=True)
    def product(
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 2})
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function(private=True)
    def product_backward(
        grad: R.Tensor((4, 2), "float32"),
        x: R.Tensor((4, 8), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 2})
        with R.dataflow():
            turned = R.permute_dims(x, [1, 0])
            w_grad = R.matmul(turned, grad)
            R.output(w_grad)
        return w_grad

    @R.function(private=True)
    def sum_grad(
        term0: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 2})
        return (term0,)

    @R.function(private=True)
    def total(
        y: R.Tensor((4, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 2})
        with R.dataflow():
            loss = R.sum(y)
            R.output(loss)
        return loss

    @R.function(private=True)
    def total_backward(
        grad: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 2})
        with R.dataflow():
            y_grad = R.broadcast_to(grad, (4, 2))
            R.output(y_grad)
        return y_grad

    @R.function(private=True)
    def sum_loss(
        term0: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 2})
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
    @R.function(private=True)
    def product(
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 2})
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function(private=True)
    def product_backward(
        grad: R.Tensor((4, 2), "float32"),
        x: R.Tensor((4, 8), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 2})
        with R.dataflow():
            turned = R.permute_dims(x, [1, 0])
            w_grad = R.matmul(turned, grad)
            R.output(w_grad)
        return w_grad

    @R.function(private=True)
    def sum_grad(
        term0: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 2})
        return (term0,)

    @R.function(private=True)
    def total(
        y: R.Tensor((4, 2), "float32"),
    ):
        R.func_attr({"dist.phase": "forward", "dist.repeat": 2})
        with R.dataflow():
            loss = R.sum(y)
            R.output(loss)
        return loss

    @R.function(private=True)
    def total_backward(
        grad: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "backward", "dist.repeat": 2})
        with R.dataflow():
            y_grad = R.broadcast_to(grad, (4, 2))
            R.output(y_grad)
        return y_grad

    @R.function(private=True)
    def sum_loss(
        term0: R.Tensor((), "float32"),
    ):
        R.func_attr({"dist.phase": "accumulate", "dist.repeat": 2})
        return (term0,)

    @R.function(private=True)
    def sum_grad_on(
        sum0: R.Tensor((8, 2), "float32"),
        term0: R.Tensor((8, 2), "float32"),
    ):
        with R.dataflow():
            total = R.add(sum0, term0)
            R.output(total)
        return (total,)

    @R.function(private=True)
    def sum_loss_on(
        sum0: R.Tensor((), "float32"),
        term0: R.Tensor((), "float32"),
    ):
        with R.dataflow():
            total = R.add(sum0, term0)
            R.output(total)
        return (total,)

    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 2), "float32"),
    ):
        R.func_attr({"num_input": 1, "dist.inputs": ["x"], "dist.param_names": ["x", "w"]})
        cls = After
        # Rows 0, 2, .. of x are micro-batch 0, rows 1, 3, .. are micro-batch 1.
        rows = R.reshape(x, (4, 2, 8))
        cut_0 = R.strided_slice(rows, (1,), (0,), (1,))
        x_0 = R.reshape(cut_0, (4, 8))
        y_0 = cls.product(x_0, w)
        cut_1 = R.strided_slice(rows, (1,), (1,), (2,))
        x_1 = R.reshape(cut_1, (4, 8))
        y_1 = cls.product(x_1, w)
        term_0 = cls.total(y_0)
        term_1 = cls.total(y_1)
        y_grad_0 = cls.total_backward(R.const(1.0, "float32"))
        loss_0 = cls.sum_loss(term_0)
        y_grad_1 = cls.total_backward(R.const(1.0, "float32"))
        loss_sum = loss_0[0]
        loss_1 = cls.sum_loss_on(loss_sum, term_1)
        w_grad_0 = cls.product_backward(y_grad_0, x_0)
        grad_0 = cls.sum_grad(w_grad_0)
        w_grad_1 = cls.product_backward(y_grad_1, x_1)
        grad_sum = grad_0[0]
        grad_1 = cls.sum_grad_on(grad_sum, w_grad_1)
        w_sum = grad_1[0]
        w_updated = R.subtract(w, w_sum)
        loss = loss_1[0]
        return (loss, w_updated)
