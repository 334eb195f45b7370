# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `LowerGlobalViewToLocalView` fails on kernels with two reductions

Softmax along a dim that is cut takes a maximum and a sum over all workers. The pass finds the
second reduction of the kernel and fails a check, with no word about what is not supported.

Expected: the kernel is taken apart between its reductions; or an error that names the op and says
to replicate the dim.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_10_local_view.py::test_softmax_along_a_dim_that_is_cut"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            columns = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
            out = R.nn.softmax(columns, axis=1)
            R.output(out)
        return out


def reproduce() -> str:
    """Softmax along the dim that is cut."""
    x = np.arange(8, dtype="float32").reshape(2, 4)

    def right() -> bool:
        result = virtual_workers.run(Module, [x])
        return np.allclose(result, virtual_workers.reference(Module, [x]))

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
