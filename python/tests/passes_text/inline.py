# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Both calls of `layer` are its body, and the function is gone."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "inline"


@I.ir_module
class Before:
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
    ):
        cls = Before
        with R.dataflow():
            a = cls.layer(x, w0)
            b = cls.layer(a, w1)
            R.output(b)
        return b


@I.ir_module
class After:
    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
    ):
        with R.dataflow():
            p = R.matmul(x, w0)
            a = R.nn.relu(p)
            p_1 = R.matmul(a, w1)
            b = R.nn.relu(p_1)
            R.output(b)
        return b
