# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the passes of DistIR give computes what one device computes."""

import numpy as np
import tvm.testing
import virtual_workers
from tvm import relax
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


def test_relu_of_a_product_in_one_kernel():
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
                out = R.nn.relu(R.matmul(columns, w))
                R.output(out)
            return out

    inputs = [integers(4, 8), integers(8, 6)]
    mod = relax.transform.LegalizeOps()(Module)
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    mod = relax.transform.FuseTIR()(relax.transform.FuseOps(fuse_opt_level=2)(mod))
    result = virtual_workers.run(mod, inputs, legalize=False)
    np.testing.assert_array_equal(result, virtual_workers.reference(Module, inputs))


if __name__ == "__main__":
    tvm.testing.main()
