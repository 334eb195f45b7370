# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `LowerGlobalViewToLocalView` refuses dims that the workers do not divide

Five rows over two workers: three for the one, two for the other. The pass fails a check that
names neither the op nor the dim.

Expected: the last shard is padded; or an error that names the value, its dim and the size of the
mesh axis.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_10_local_view.py::test_rows_that_do_not_come_out_even"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(x: R.Tensor((5, 4), "float32")) -> R.Tensor((5, 4), "float32"):
        with R.dataflow():
            rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            out = R.nn.relu(rows)
            R.output(out)
        return out


def reproduce() -> str:
    """An op on rows that do not come out even."""
    x = np.arange(20, dtype="float32").reshape(5, 4)

    def right() -> bool:
        result = virtual_workers.run(Module, [x])
        return np.allclose(result, virtual_workers.reference(Module, [x]))

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
