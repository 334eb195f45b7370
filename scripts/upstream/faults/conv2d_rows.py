# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `conv2d` on images cut along their rows reads beyond the shard

An image of 8 rows lies cut over two workers. `LowerGlobalViewToLocalView` halves the buffer of
the image and changes nothing else in the kernel: each worker computes all 8 rows of the result,
which is typed as replicated, and reads 4 rows that it does not hold from what lies behind its
buffer.

Expected: each worker computes its rows, with those of its neighbour that the window reaches; or
the module is refused.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_07_refuse_kernels.py::test_conv2d_of_rows_that_are_sharded"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((1, 1, 8, 1), "float32"), w: R.Tensor((1, 1, 3, 1), "float32")
    ) -> R.Tensor((1, 1, 8, 1), "float32"):
        with R.dataflow():
            rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[2]")
            out = R.nn.conv2d(rows, w, padding=(1, 0))
            R.output(out)
        return out


def reproduce() -> str:
    """Add up each row and its neighbours; 77 is what lies behind a shard here."""
    x = np.arange(1, 9, dtype="float32").reshape(1, 1, 8, 1)
    w = np.ones((1, 1, 3, 1), "float32")

    def right() -> bool:
        local, result = virtual_workers.distribute(Module)
        expected = virtual_workers.reference(Module, [x, w])
        print("one device gives:", *expected.ravel().astype(int))
        print("placement of the result:", str(result.placement))
        observed = virtual_workers.shards(local, [x, w], [2])
        for worker, rows in enumerate(observed):
            print(f"worker {worker} gives:", *rows.ravel().astype(int))
        return np.array_equal(virtual_workers.execute(local, [x, w], result), expected)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
