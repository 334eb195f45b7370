# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] A kernel that goes on with what it has summed is summed over workers too late

`matmul` and `relu` are fused to one kernel, and the dim that is summed lies cut.
`LowerGlobalViewToLocalView` adds the all-reduce behind the kernel: each worker applies `relu` to
its own terms, and the results are summed. Nothing is said.

Expected: the module is refused, or the kernel is split where the all-reduce belongs.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm import ir, relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_10_local_view.py::test_relu_of_a_product_in_one_kernel"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(x: R.Tensor((1, 2), "float32"), w: R.Tensor((2, 1), "float32")) -> R.Tensor(
        (1, 1), "float32"
    ):
        with R.dataflow():
            columns = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
            out = R.nn.relu(R.matmul(columns, w))
            R.output(out)
        return out


def fused() -> ir.IRModule:
    """The module with one kernel."""
    mod = relax.transform.LegalizeOps()(Module)
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    return relax.transform.FuseTIR()(relax.transform.FuseOps(fuse_opt_level=2)(mod))


def reproduce() -> str:
    """Sum 3 and -1, each of which one worker holds."""
    x, w = np.array([[3, -1]], "float32"), np.ones((2, 1), "float32")

    def right() -> bool:
        local, _ = virtual_workers.distribute(fused(), legalize=False)
        result = virtual_workers.shards(local, [x, w], [2])
        print("one device gives:", *np.maximum(x @ w, 0).ravel())
        for worker, product in enumerate(result):
            print(f"worker {worker} gives:", *product.ravel())
        return all(np.array_equal(product, np.maximum(x @ w, 0)) for product in result)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
