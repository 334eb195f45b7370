# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Operators that are not legalized are refused where their shards do not give the whole."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def integers(*shape):
    """Small whole numbers: their sums are exact in any order."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype("float32")


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

    x, w = integers(4, 8), integers(8, 6)
    try:
        result = virtual_workers.run(Module, [x, w], legalize=legalize)
    except ValueError as error:
        assert not legalize and "matmul" in str(error) and "LegalizeOps" in str(error)
    else:
        np.testing.assert_array_equal(result, x @ w)


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


def test_rows_of_a_product_are_accepted():
    @I.ir_module
    class Module:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 6), "float32")) -> R.Tensor(
            (4, 6), "float32"
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
                y = R.matmul(rows, w)
                out = R.nn.relu(y)
                R.output(out)
            return out

    x, w = integers(4, 8), integers(8, 6)
    result = virtual_workers.run(Module, [x, w], legalize=False)
    np.testing.assert_array_equal(result, np.maximum(x @ w, 0))


if __name__ == "__main__":
    tvm.testing.main()
