# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation has one result."""

import tvm
import tvm.testing
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def test_the_result_does_not_depend_on_addresses():
    @I.ir_module
    class Module:
        I.module_global_infos(
            {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
        )

        @R.function
        def main(
            x: R.Tensor((4, 4), "float32"),
            a: R.Tensor((4, 4), "float32"),
            b: R.Tensor((4, 4), "float32"),
            c: R.Tensor((4, 4), "float32"),
            d: R.Tensor((4, 4), "float32"),
        ) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
                a0 = R.dist.annotate_sharding(a, device_mesh="mesh[0]", placement="R")
                b0 = R.dist.annotate_sharding(b, device_mesh="mesh[0]", placement="R")
                y = R.matmul(R.nn.relu(R.matmul(x0, a0)), b0)
                y1 = R.dist.annotate_sharding(y, device_mesh="mesh[1]", placement="R")
                c1 = R.dist.annotate_sharding(c, device_mesh="mesh[1]", placement="R")
                d1 = R.dist.annotate_sharding(d, device_mesh="mesh[1]", placement="R")
                z = R.matmul(R.nn.relu(R.matmul(y1, c1)), d1)
                R.output(z)
            return z

    text = Module.script()

    def once():
        return relax.distributed.transform.PropagateSharding()(tvm.script.from_source(text))

    first = once()
    for _ in range(63):
        tvm.ir.assert_structural_equal(once(), first)


if __name__ == "__main__":
    tvm.testing.main()
