# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `PropagateSharding` refuses calls of private functions

A layer is a private function, called from main with an annotated argument. The pass looks at one
function at a time: the argument becomes a DTensor, the parameter stays a tensor, and the call is
ill-typed.

Expected: placements go through calls; a function called with different placements is copied.
"""

from reporting import report, state_of
from tvm.relax.distributed import transform
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_09_inline_private_functions.py::test_placements_go_through_nested_calls"


@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        with R.dataflow():
            out = R.nn.relu(R.matmul(x, w))
            R.output(out)
        return out

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        cls = Module
        with R.dataflow():
            rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            out = cls.layer(rows, w)
            R.output(out)
        return out


def reproduce() -> str:
    """Propagate from the argument of a call."""

    def right() -> bool:
        mod = transform.PropagateSharding()(Module)
        return str(mod["main"].ret_ty.placement) == '"S[0]"'

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
