# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Propagation goes through calls: of several meshes, of tuples, of functions that call others."""

import pytest
import tvm
import tvm.testing
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def propagate(mod):
    return relax.distributed.transform.PropagateSharding()(mod)


def test_a_private_function_on_two_meshes_is_written_for_each():
    @I.ir_module
    class Before:
        I.module_global_infos(
            {"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2,), I.Range(2, 4))]}
        )

        @R.function(private=True)
        def layer(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (4, 8), "float32"
        ):
            with R.dataflow():
                out = R.matmul(x, w)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((4, 8), "float32"),
            a: R.Tensor((8, 8), "float32"),
            b: R.Tensor((8, 8), "float32"),
        ) -> R.Tensor((4, 8), "float32"):
            cls = Before
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
                y = cls.layer(rows, a)
                moved = R.dist.annotate_sharding(y, device_mesh="mesh[1]", placement="R")
                z = cls.layer(moved, b)
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        I.module_global_infos(
            {"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2,), I.Range(2, 4))]}
        )

        @R.function(private=True)
        def layer(
            x: R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ) -> R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"):
            with R.dataflow():
                out = R.matmul(x, w)
                R.output(out)
            return out

        @R.function(private=True)
        def layer1(
            x: R.DTensor((4, 8), "float32", "mesh[1]", "R"),
            w: R.DTensor((8, 8), "float32", "mesh[1]", "R"),
        ) -> R.DTensor((4, 8), "float32", "mesh[1]", "R"):
            with R.dataflow():
                out = R.matmul(x, w)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"),
            a: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            b: R.DTensor((8, 8), "float32", "mesh[1]", "R"),
        ) -> R.DTensor((4, 8), "float32", "mesh[1]", "R"):
            cls = Expected
            with R.dataflow():
                y = cls.layer(x, a)
                moved = R.dist.redistribute(y, device_mesh="mesh[1]", placement="R")
                z = cls.layer1(moved, b)
                R.output(z)
            return z

    tvm.ir.assert_structural_equal(propagate(Before), Expected)


def test_tuples_go_through_calls_of_functions_that_call_others():
    @I.ir_module
    class Before:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def inner(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            with R.dataflow():
                out = R.nn.relu(x)
                R.output(out)
            return out

        @R.function(private=True)
        def outer(
            pair: R.Tuple(R.Tensor((4, 8), "float32"), R.Tensor((4, 8), "float32")),
        ) -> R.Tuple(R.Tensor((4, 8), "float32"), R.Tensor((4, 8), "float32")):
            cls = Before
            with R.dataflow():
                first = pair[0]
                second = pair[1]
                out = (cls.inner(first), R.add(first, second))
                R.output(out)
            return out

        @R.function
        def main(x: R.Tensor((4, 8), "float32"), y: R.Tensor((4, 8), "float32")) -> R.Tensor(
            (4, 8), "float32"
        ):
            cls = Before
            with R.dataflow():
                columns = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
                pair = cls.outer((columns, y))
                z = pair[1]
                R.output(z)
            return z

    after = propagate(Before)
    text = after.script()
    assert text.count("S[0]") == 0 and "redistribute" not in text
    for name in ("inner", "outer", "main"):
        assert 'placement="R"' not in str(after[name].ret_ty)
        assert "S[1]" in str(after[name].ret_ty)


def test_a_function_that_calls_itself_is_refused_by_name():
    @I.ir_module
    class Before:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def endless(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Before
            y = cls.endless(x)
            return y

        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Before
            rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            y = cls.endless(rows)
            return y

    with pytest.raises(ValueError, match="endless -> endless"):
        propagate(Before)


def test_functions_without_annotations_stay_as_they_are():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            y = R.nn.relu(x)
            return y

    tvm.ir.assert_structural_equal(propagate(Before), Before)


if __name__ == "__main__":
    tvm.testing.main()
