# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `take` from a table cut along its rows reads the wrong rows

An embedding table of 8 rows lies cut over two workers, 4 rows each, and all indices are looked
up. `LowerGlobalViewToLocalView` halves the buffer of the table and leaves the index as it is:
worker 1 reads its own row 0 where row 0 of the whole table is meant. An index of 4 or more reads
behind the buffer. Nothing is said.

Expected: each worker looks up what it holds and gives zeros elsewhere, and the results are
summed; or the module is refused.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_07_refuse_kernels.py::test_take_of_rows_that_are_sharded"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(ids: R.Tensor((4,), "int32"), table: R.Tensor((8, 2), "float32")) -> R.Tensor(
        (4, 2), "float32"
    ):
        with R.dataflow():
            rows = R.dist.annotate_sharding(table, device_mesh="mesh[0]", placement="S[0]")
            out = R.take(rows, ids, axis=0)
            R.output(out)
        return out


def reproduce() -> str:
    """Look up rows that worker 0 holds; every entry of a row is the row's number."""
    ids = np.array([0, 1, 2, 3], "int32")
    table = np.repeat(np.arange(8, dtype="float32")[:, None], 2, axis=1)

    def right() -> bool:
        local, _ = virtual_workers.distribute(Module)
        result = virtual_workers.shards(local, [ids, table], [2])
        print("rows asked for:", *ids)
        for worker, rows in enumerate(result):
            print(f"rows that worker {worker} gives:", *rows[:, 0].astype(int))
        return all(np.array_equal(rows, table[ids]) for rows in result)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
