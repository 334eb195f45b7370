# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] Type inference of `matmul` drops one of two placements that do not agree

The rows of one operand and the columns of the other are cut over the same mesh axis. No placement
of the result fits: a worker holds a block on the diagonal. The inferred type is `S[1]`, with the
rows taken for whole, and lowering goes on.

Expected: type inference refuses operands that want different things of one mesh axis.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm import ir
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_08_refuse_not_legalized.py::test_rows_times_columns_over_one_mesh_axis_is_refused"
LOWERING = virtual_workers.PASSES[1:]


def module() -> ir.IRModule:
    """The module; the type of its result is inferred."""

    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(
            x: R.DTensor((4, 2), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((2, 4), "float32", "mesh[0]", "S[1]"),
        ):
            with R.dataflow():
                out = R.matmul(x, w)
                R.output(out)
            return out

    return Module


def reproduce() -> str:
    """Multiply rows by columns."""
    x = np.arange(8, dtype="float32").reshape(4, 2)
    w = np.arange(8, dtype="float32").reshape(2, 4)

    def right() -> bool:
        local, result = virtual_workers.distribute(module(), LOWERING, legalize=False)
        print("inferred placement of the (4, 4) result:", str(result.placement))
        observed = virtual_workers.shards(local, [x, w], [2])
        for worker, block in enumerate(observed):
            print(f"worker {worker} gives a block of shape {block.shape}")
        return all(block.shape == (4, 2) for block in observed)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
