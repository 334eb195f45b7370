# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The product and its ReLU that repeat become calls of the private function `layer`; what differs,
the weight, is a parameter.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "outline{min_bindings=2}"


@I.ir_module
class Before:
    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
        w2: R.Tensor((8, 8), "float32"),
    ):
        with R.dataflow():
            p = R.matmul(x, w0)
            a = R.nn.relu(p)
            p_1 = R.matmul(a, w1)
            b = R.nn.relu(p_1)
            p_2 = R.matmul(b, w2)
            c = R.nn.relu(p_2)
            R.output(c)
        return c


@I.ir_module
class After:
    @R.function(private=True)
    def layer(
        x: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
    ):
        with R.dataflow():
            p = R.matmul(x, w)
            y = R.nn.relu(p)
            R.output(y)
        return y

    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
        w2: R.Tensor((8, 8), "float32"),
    ):
        cls = After
        with R.dataflow():
            a = cls.layer(x, w0)
            b = cls.layer(a, w1)
            c = cls.layer(b, w2)
            R.output(c)
        return c
