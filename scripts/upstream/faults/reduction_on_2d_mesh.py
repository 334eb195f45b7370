# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] A sum on a mesh of two axes adds up what different workers hold

A matrix lies cut along both dims on a mesh of 2 x 2 workers, and its rows are summed. The result
is cut along the first mesh axis, and only the workers along the second hold terms of one sum.
`LowerGlobalViewToLocalView` adds an all-reduce over all four, and types its result as replicated
everywhere: the sums of different rows are added to each other.

Expected: the all-reduce runs along the mesh axis whose terms it adds, and the placement along the
other axis stays.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_07_refuse_kernels.py::test_sum_along_one_axis_of_a_2d_mesh"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})

    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            tiles = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], S[1]")
            out = R.sum(tiles, axis=1)
            R.output(out)
        return out


def reproduce() -> str:
    """Sum rows that hold 0, 1, 2 and 3 in all entries."""
    x = np.repeat(np.arange(4, dtype="float32")[:, None], 4, axis=1)

    def right() -> bool:
        passes = virtual_workers.PASSES[:3]  # LowerDistIR takes no mesh of two axes
        local, result = virtual_workers.distribute(Module, passes)
        body = local["main"].body.blocks[0].bindings
        print("one device gives:", *x.sum(1).astype(int))
        print("placement that main says:", str(result.placement))
        print("placement of the last binding:", str(body[-1].var.ty.placement))
        observed = virtual_workers.shards(local, [x], [2, 2])
        for worker, sums in enumerate(observed):
            print(f"worker {worker} gives:", *sums.astype(int))
        return np.array_equal(virtual_workers.execute(local, [x], result), x.sum(1))

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
