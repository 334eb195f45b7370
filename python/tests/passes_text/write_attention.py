# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Heads come before positions; then scores, exponentials below their maximum, and their mean of the
values.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "write-attention"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        q: R.Tensor((1, 4, 3, 2), "float32"),
        k: R.Tensor((1, 5, 3, 2), "float32"),
        v: R.Tensor((1, 5, 3, 2), "float32"),
    ):
        with R.dataflow():
            pair = R.dist.attention(q, k, v, scale=0.5)
            out = pair[0]
            R.output(out)
        return out


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        q: R.Tensor((1, 4, 3, 2), "float32"),
        k: R.Tensor((1, 5, 3, 2), "float32"),
        v: R.Tensor((1, 5, 3, 2), "float32"),
    ):
        with R.dataflow():
            queries = R.permute_dims(q, [0, 2, 1, 3])
            keys = R.permute_dims(k, [0, 2, 1, 3])
            turned = R.permute_dims(keys, [0, 1, 3, 2])
            products = R.matmul(queries, turned)
            scores = R.multiply(products, R.const(0.5, "float32"))
            top = R.max(scores, axis=[3], keepdims=True)
            below = R.subtract(scores, top)
            raised = R.exp(below)
            total = R.sum(raised, axis=[3], keepdims=True)
            weights = R.divide(raised, total)
            values = R.permute_dims(v, [0, 2, 1, 3])
            mixed = R.matmul(weights, values)
            logarithm = R.log(total)
            lse = R.add(top, logarithm)
            rows = R.reshape(lse, (1, 3, 4))
            result = R.permute_dims(mixed, [0, 2, 1, 3])
            pair = (result, rows)
            out = pair[0]
            R.output(out)
        return out
