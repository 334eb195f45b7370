# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation goes through calls of private functions."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm.relax.distributed import transform
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def integers(*shape):
    """Small whole numbers: their sums are exact in any order."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype("float32")


def test_placements_go_through_nested_calls():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def product(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (4, 8), "float32"
        ):
            with R.dataflow():
                out = R.matmul(x, w)
                R.output(out)
            return out

        @R.function(private=True)
        def layer(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (4, 8), "float32"
        ):
            cls = Module
            with R.dataflow():
                lv = cls.product(x, w)
                out = R.nn.relu(lv)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((4, 8), "float32"),
            a: R.Tensor((8, 8), "float32"),
            b: R.Tensor((8, 8), "float32"),
        ) -> R.Tensor((4, 8), "float32"):
            R.func_attr({"num_input": 1})
            cls = Module
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
                y = cls.layer(rows, a)
                z = cls.layer(y, b)
                R.output(z)
            return z

    after = transform.PropagateSharding()(Module)
    assert str(after["main"].ret_ty.placement) == '"S[0]"'
    x, a, b = integers(4, 8), integers(8, 8), integers(8, 8)
    observed = virtual_workers.run(Module, [x, a, b])
    np.testing.assert_array_equal(observed, np.maximum(np.maximum(x @ a, 0) @ b, 0))


def test_an_annotation_in_a_private_function_is_found():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def layer(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
                out = R.nn.relu(rows)
                R.output(out)
            return out

        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            with R.dataflow():
                out = cls.layer(x)
                R.output(out)
            return out

    after = transform.PropagateSharding()(Module)
    assert str(after["main"].ret_ty.placement) == '"S[0]"'


def test_a_function_that_calls_itself_is_refused_by_name():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def endless(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            y = cls.endless(x)
            return y

        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Module
            rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            y = cls.endless(rows)
            return y

    with pytest.raises(Exception, match="endless"):
        transform.PropagateSharding()(Module)


if __name__ == "__main__":
    tvm.testing.main()
