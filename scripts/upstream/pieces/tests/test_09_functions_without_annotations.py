# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Functions that no annotation reaches keep their calls, as they do on the wheel."""

import tvm
import tvm.testing
from tvm.relax.distributed import transform
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def test_functions_without_annotations_keep_their_calls():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def layer(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            y = cls.layer(x)
            return y

    tvm.ir.assert_structural_equal(transform.PropagateSharding()(Module), Module)


def test_functions_that_another_one_still_calls_remain():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def inner(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function(private=True)
        def outer(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            y = cls.inner(x)
            return y

        @R.function
        def plain(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            y = cls.outer(x)
            return y

        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            y = cls.outer(rows)
            return y

    after = transform.PropagateSharding()(Module)
    assert str(after["main"].ret_ty.placement) == '"S[0]"'
    names = ("inner", "outer", "plain")
    before, unchanged = ({name: mod[name] for name in names} for mod in (Module, after))
    tvm.ir.assert_structural_equal(tvm.IRModule(unchanged), tvm.IRModule(before))


def test_a_function_that_calls_itself_keeps_its_call():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def endless(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            y = cls.endless(x)
            return y

    tvm.ir.assert_structural_equal(transform.PropagateSharding()(Module), Module)


if __name__ == "__main__":
    tvm.testing.main()
