# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `LowerDistIR` knows meshes of one axis only

Rows cut over the first axis of a mesh of 2 x 2 workers, and nothing else. All passes before it
take the module; `LowerDistIR` checks that the mesh has one axis and fails.

Expected: each mesh axis cuts its dim; groups of workers follow from the mesh.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_10_local_view.py::test_rows_on_a_2d_mesh_are_lowered"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})

    @R.function
    def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], R")
            out = R.nn.relu(rows)
            R.output(out)
        return out


def reproduce() -> str:
    """An op without any communication."""
    x = np.arange(8, dtype="float32").reshape(2, 4)

    def right() -> bool:
        result = virtual_workers.run(Module, [x])
        return np.allclose(result, virtual_workers.reference(Module, [x]))

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
