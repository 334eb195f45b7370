# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation goes through calls of private functions, which stay functions."""

import tvm
import tvm.testing
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def test_placements_go_through_calls_of_private_functions():
    @I.ir_module
    class Before:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def layer(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (4, 8), "float32"
        ):
            with R.dataflow():
                lv = R.matmul(x, w)
                out = R.nn.relu(lv)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((4, 8), "float32"),
            a: R.Tensor((8, 8), "float32"),
            b: R.Tensor((8, 8), "float32"),
        ) -> R.Tensor((4, 8), "float32"):
            cls = Before
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
                y = cls.layer(rows, a)
                z = cls.layer(y, b)
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def layer(
            x: R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ) -> R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"):
            with R.dataflow():
                lv = R.matmul(x, w)
                out = R.nn.relu(lv)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"),
            a: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            b: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ) -> R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"):
            cls = Expected
            with R.dataflow():
                y = cls.layer(x, a)
                z = cls.layer(y, b)
                R.output(z)
            return z

    after = relax.distributed.transform.PropagateSharding()(Before)
    tvm.ir.assert_structural_equal(after, Expected)


if __name__ == "__main__":
    tvm.testing.main()
