# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `LegalizeRedistribute` knows meshes of one axis only

On a mesh of 2 x 2 workers a tensor that is cut along the first axis shall be cut along the second
one too, of which each worker keeps a part of what it has. The pass checks that the mesh has one
axis.

Expected: transitions axis by axis; collectives take the mesh axis they run along.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_10_redistribute_on_2d_mesh.py::test_on_a_2d_mesh"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})

    @R.function
    def main(x: R.DTensor((4, 4), "float32", "mesh[0]", "S[0], R")):
        with R.dataflow():
            out = R.dist.redistribute(x, device_mesh="mesh[0]", placement="S[0], S[1]")
            R.output(out)
        return out


def reproduce() -> str:
    """Redistribute from S[0], R to S[0], S[1]."""
    x = np.arange(16, dtype="float32").reshape(4, 4)

    def right() -> bool:
        local, result = virtual_workers.distribute(Module, ["LegalizeRedistribute"], legalize=False)
        return np.array_equal(virtual_workers.execute(local, [x], result), x)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
