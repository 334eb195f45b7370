# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The layer's softmax over scores becomes the op, and the mask that `main` computes its attribute;
transposes of heads and positions that stand around it cancel.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "fuse-attention"


@I.ir_module
class Before:
    @R.function(private=True)
    def layer(
        q: R.Tensor((2, 8, 4, 16), "float32"),
        k: R.Tensor((2, 2, 8, 16), "float32"),
        v: R.Tensor((2, 2, 8, 16), "float32"),
        mask: R.Tensor((8, 8), "bool"),
    ):
        with R.dataflow():
            heads = R.permute_dims(q, axes=[0, 2, 1, 3])
            keys = R.repeat(k, 2, axis=1)
            values = R.repeat(v, 2, axis=1)
            turned = R.permute_dims(keys, axes=[0, 1, 3, 2])
            scores = R.matmul(heads, turned)
            scaled = R.multiply(scores, R.const(0.25, "float32"))
            masked = R.where(mask, scaled, R.const(-1e30, "float32"))
            weights = R.nn.softmax(masked, axis=-1)
            mixed = R.matmul(weights, values)
            out = R.permute_dims(mixed, axes=[0, 2, 1, 3])
            R.output(out)
        return out

    @R.function
    def main(
        q: R.Tensor((2, 8, 4, 16), "float32"),
        k: R.Tensor((2, 2, 8, 16), "float32"),
        v: R.Tensor((2, 2, 8, 16), "float32"),
    ):
        cls = Before
        with R.dataflow():
            places = R.arange(R.prim_value(0), R.prim_value(8), R.prim_value(1), dtype="int64")
            rows = R.expand_dims(places, axis=[1])
            columns = R.expand_dims(places, axis=[0])
            mask = R.less_equal(columns, rows)
            out = cls.layer(q, k, v, mask)
            R.output(out)
        return out


@I.ir_module
class After:
    @R.function(private=True)
    def layer(
        q: R.Tensor((2, 8, 4, 16), "float32"),
        k: R.Tensor((2, 2, 8, 16), "float32"),
        v: R.Tensor((2, 2, 8, 16), "float32"),
    ):
        with R.dataflow():
            keys = R.permute_dims(k, axes=[0, 2, 1, 3])
            values = R.permute_dims(v, axes=[0, 2, 1, 3])
            pair = R.dist.attention(q, keys, values, scale=0.25, causal=True)
            out = pair[0]
            R.output(out)
        return out

    @R.function
    def main(
        q: R.Tensor((2, 8, 4, 16), "float32"),
        k: R.Tensor((2, 2, 8, 16), "float32"),
        v: R.Tensor((2, 2, 8, 16), "float32"),
    ):
        cls = After
        with R.dataflow():
            out = cls.layer(q, k, v)
            R.output(out)
        return out
