# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the passes of DistIR give computes what one device computes."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def integers(*shape):
    """Small whole numbers: their sums are exact in any order."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype("float32")


def check(mod, inputs, **options):
    """The module distributed and run on virtual workers equals the module on one device."""
    expected = virtual_workers.reference(mod, inputs)
    result = virtual_workers.run(mod, inputs, **options)
    tvm.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [7, 0, 4, 3]])
def test_take_of_rows_that_are_cut(ids):
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(ids: R.Tensor((4,), "int32"), table: R.Tensor((8, 3), "float32")) -> R.Tensor(
            (4, 3), "float32"
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                rows = R.dist.annotate_sharding(table, device_mesh="mesh[0]", placement="S[0]")
                out = R.take(rows, ids, axis=0)
                R.output(out)
            return out

    check(Module, [np.array(ids, "int32"), integers(8, 3)])


def test_conv2d_of_rows_that_are_cut():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(
            x: R.Tensor((1, 2, 8, 6), "float32"), w: R.Tensor((3, 2, 3, 3), "float32")
        ) -> R.Tensor((1, 3, 8, 6), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[2]")
                out = R.nn.conv2d(rows, w, padding=(1, 1))
                R.output(out)
            return out

    check(Module, [integers(1, 2, 8, 6), integers(3, 2, 3, 3)])


@pytest.mark.parametrize("legalize", [True, False])
def test_matmul_summed_over_workers(legalize):
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 6), "float32")) -> R.Tensor(
            (4, 6), "float32"
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                columns = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
                out = R.matmul(columns, w)
                R.output(out)
            return out

    check(Module, [integers(4, 8), integers(8, 6)], legalize=legalize)


def test_sum_along_one_axis_of_a_2d_mesh():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})

        @R.function
        def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((4,), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                tiles = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], S[1]")
                out = R.sum(tiles, axis=1)
                R.output(out)
            return out

    # Without LowerDistIR, whose own limit has a test of its own below.
    check(Module, [integers(4, 6)], passes=virtual_workers.PASSES[:3])


def test_rows_on_a_2d_mesh_are_lowered():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})

        @R.function
        def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((4, 6), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], R")
                out = R.nn.relu(rows)
                R.output(out)
            return out

    check(Module, [integers(4, 6)])


def test_softmax_along_a_dim_that_is_cut():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                columns = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
                out = R.nn.softmax(columns, axis=1)
                R.output(out)
            return out

    check(Module, [integers(4, 8)])


def test_rows_that_do_not_come_out_even():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(x: R.Tensor((5, 4), "float32")) -> R.Tensor((5, 4), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
                out = R.nn.relu(rows)
                R.output(out)
            return out

    check(Module, [integers(5, 4)])


def test_rows_times_columns_over_one_mesh_axis_is_refused():
    """No placement of the result fits: type inference, or a pass, has to name the op."""
    x, w = integers(4, 8), integers(8, 6)
    with pytest.raises(Exception, match="matmul"):

        @I.ir_module
        class Module:
            I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

            @R.function
            def main(
                x: R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"),
                w: R.DTensor((8, 6), "float32", "mesh[0]", "S[1]"),
            ):
                R.func_attr({"num_input": 1})
                with R.dataflow():
                    out = R.matmul(x, w)
                    R.output(out)
                return out

        virtual_workers.run(Module, [x, w], passes=virtual_workers.PASSES[1:], legalize=False)


if __name__ == "__main__":
    tvm.testing.main()
