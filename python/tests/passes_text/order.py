# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A state that ``dp`` shards inside of the tensor parallelism of its weight is placed on a view of
the mesh whose major axis is ``tp``, a slice along ``dp`` apart from the weight.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "order"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["dp", "tp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})

    @R.function
    def main(
        weight: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[0]"),
        state: R.DTensor((8, 8), "float32", "mesh[0]", "S[0], S[0]"),
    ):
        with R.dataflow():
            part = R.dist.redistribute(weight, device_mesh="mesh[0]", placement="S[0], S[0]")
            new = R.add(state, part)
            R.output(new)
        return new


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["dp", "tp"], ["tp", "dp"]]})
    I.module_global_infos(
        {"mesh": [R.device_mesh((2, 2), I.Range(0, 4)), R.device_mesh((2, 2), [0, 2, 1, 3])]}
    )

    @R.function
    def main(
        weight: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[0]"),
        state: R.DTensor((8, 8), "float32", "mesh[1]", "S[0], S[0]"),
    ):
        with R.dataflow():
            part = R.dist.redistribute(weight, device_mesh="mesh[1]", placement="S[0], S[0]")
            new = R.add(state, part)
            R.output(new)
        return new
