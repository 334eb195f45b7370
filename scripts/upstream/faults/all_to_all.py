# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `LegalizeRedistribute`: from one sharded dim to another is missing

A tensor that is cut along its rows is wanted cut along its columns. The pass knows that this
takes an all-to-all and has none.

Expected: an all-to-all; or, as long as `relax.ccl` has none, an all-gather and the part that each
worker keeps.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_06_all_gather.py::test_from_one_dim_to_another"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(x: R.DTensor((4, 4), "float32", "mesh[0]", "S[0]")):
        with R.dataflow():
            out = R.dist.redistribute(x, device_mesh="mesh[0]", placement="S[1]")
            R.output(out)
        return out


def reproduce() -> str:
    """Redistribute from S[0] to S[1]."""
    x = np.arange(16, dtype="float32").reshape(4, 4)

    def right() -> bool:
        local, result = virtual_workers.distribute(Module, ["LegalizeRedistribute"], legalize=False)
        return np.array_equal(virtual_workers.execute(local, [x], result), x)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
