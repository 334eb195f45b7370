# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `LegalizeRedistribute`: from sharded to replicated is missing

A tensor that is cut along its rows is wanted whole by every worker. The pass knows that this
takes an all-gather and has none, although `R.ccl.allgather` exists.

Expected: `R.ccl.allgather`, with a transpose around it where another dim than the first is cut.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_06_all_gather.py::test_from_sharded_to_replicated"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(x: R.DTensor((4, 4), "float32", "mesh[0]", "S[0]")):
        with R.dataflow():
            out = R.dist.redistribute(x, device_mesh="mesh[0]", placement="R")
            R.output(out)
        return out


def reproduce() -> str:
    """Redistribute from S[0] to R."""
    x = np.arange(16, dtype="float32").reshape(4, 4)

    def right() -> bool:
        local, result = virtual_workers.distribute(Module, ["LegalizeRedistribute"], legalize=False)
        return np.array_equal(virtual_workers.execute(local, [x], result), x)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
