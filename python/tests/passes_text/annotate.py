# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The rule of the plan is an `annotate_sharding` of `w` at the top of the function, and the module
has the plan's mesh.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "annotate"
PLAN = {
    "schema_version": 1,
    "mesh": {"a": 2},
    "rules": [{"param": "w", "placement": "S[0]"}],
}


@I.ir_module
class Before:
    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w: R.Tensor((16, 32), "float32"),
    ):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y


@I.ir_module
class After:
    I.module_attrs({"device_num": 2, "mesh_axes": [["a"]], "mesh_names": ["mesh0"]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w: R.Tensor((16, 32), "float32"),
    ):
        with R.dataflow():
            w_placed = R.dist.annotate_sharding(w, "mesh[0]", "S[0]")
            y = R.matmul(x, w_placed)
            R.output(y)
        return y
