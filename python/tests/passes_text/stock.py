# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`all_gather` along dim 1 gathers dim 0 of a transposed operand, and a slice starts where the
number of the worker says.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

PASS = "stock"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        y: R.Tensor((8, 4), "float32"),
    ):
        with R.dataflow():
            a = R.dist.all_reduce(x, "mesh[0]", [0], "sum")
            b = R.dist.all_gather(y, "mesh[0]", 0, 1)
            c = R.dist.local_slice(b, "mesh[0]", 0, 0)
            d = R.add(a, c)
            R.output(d)
        return d


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        y: R.Tensor((8, 4), "float32"),
    ):
        worker_id = T.int64()
        with R.dataflow():
            a = R.ccl.allreduce(x, op_type="sum", in_group=False)
            turned = R.permute_dims(y, [1, 0])
            gathered = R.ccl.allgather(turned, num_workers=2, in_group=False)
            b = R.permute_dims(gathered, [1, 0])
            number = R.call_pure_packed("runtime.disco.worker_id", ty_args=(R.Shape(ndim=1),))
            worker = R.match_cast(number, R.Shape([worker_id]))
            part = R.strided_slice(
                b, (0,), (worker_id % 2 * 4,), ((worker_id % 2 + 1) * 4,), assume_inbound=True
            )
            typed = R.match_cast(part, R.Tensor((4, 8), "float32"))
            c = typed
            d = R.add(a, c)
            R.output(d)
        return d
