# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] Without `LegalizeOps`, a product summed over workers loses its all-reduce

Both operands of a `matmul` lie cut along the dim that is summed. After `LegalizeOps` the kernel
gets an all-reduce. Without it the op stays `R.matmul`, no pass says so, and `LowerDistIR` gives a
module in which each worker returns its own term as the result.

Expected: the all-reduce is added to ops as to kernels; or a pass refuses what is not legalized.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_08_refuse_not_legalized.py::test_matmul_summed_over_workers"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 2), "float32")) -> R.Tensor(
        (2, 2), "float32"
    ):
        with R.dataflow():
            columns = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
            out = R.matmul(columns, w)
            R.output(out)
        return out


def reproduce() -> str:
    """Multiply, with LegalizeOps and without."""
    x = np.arange(8, dtype="float32").reshape(2, 4)
    w = np.ones((4, 2), "float32")
    print("one device gives:", *(x @ w).ravel().astype(int))

    def right(legalize: bool) -> bool:
        local, _ = virtual_workers.distribute(Module, legalize=legalize)
        result = virtual_workers.shards(local, [x, w], [2])
        print("with LegalizeOps:" if legalize else "without LegalizeOps:")
        for worker, product in enumerate(result):
            print(f"  worker {worker} gives:", *product.ravel().astype(int))
        return all(np.array_equal(product, x @ w) for product in result)

    print("state with LegalizeOps:", state_of(lambda: right(True)))
    return state_of(lambda: right(False))


if __name__ == "__main__":
    report(reproduce)
