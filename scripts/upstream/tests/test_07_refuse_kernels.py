# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels whose shards would give wrong numbers are refused, or lowered so that they are right."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.relax.op.distributed import annotate_sharding


def integers(*shape):
    """Small whole numbers: their sums are exact in any order."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype("float32")


def module(make, inputs, placements, mesh=(2,)):
    """A module that computes an expression of inputs with these placements, None for any."""
    devices = DeviceMesh(mesh, ir.Range(0, int(np.prod(mesh))))
    types = [relax.TensorType(x.shape, str(x.dtype)) for x in inputs]
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            values = [
                x if p is None else annotate_sharding(x, devices, Placement.from_text(p))
                for x, p in zip(params, placements)
            ]
            result = builder.emit_output(make(*[builder.emit(x) for x in values]))
        builder.emit_func_output(result)
    mod = builder.finalize()
    mod["main"] = mod["main"].with_attr("num_input", 1)
    mod.update_global_info("mesh", [devices])
    return mod


def check_refused(name, make, inputs, placements, mesh=(2,), passes=virtual_workers.PASSES):
    """The lowering names the kernel, or its result is that of one device."""
    mod = module(make, inputs, placements, mesh)
    expected = virtual_workers.reference(mod, inputs)
    try:
        result = virtual_workers.run(mod, inputs, passes=passes)
    except ValueError as error:
        assert f'"{name}"' in str(error) and "sharded" in str(error)
    else:
        np.testing.assert_array_equal(result, expected)


def check_accepted(make, inputs, placements):
    """The result of the lowered module is that of one device."""
    mod = module(make, inputs, placements)
    expected = virtual_workers.reference(mod, inputs)
    np.testing.assert_array_equal(virtual_workers.run(mod, inputs), expected)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [7, 0, 4, 3]])
def test_take_of_rows_that_are_sharded(ids):
    inputs = [np.array(ids, "int32"), integers(8, 3)]
    check_refused("take", lambda i, x: relax.op.take(x, i, axis=0), inputs, [None, "S[0]"])


def test_conv2d_of_rows_that_are_sharded():
    inputs = [integers(1, 2, 8, 6), integers(3, 2, 3, 3)]
    check_refused(
        "conv2d", lambda x, w: relax.op.nn.conv2d(x, w, padding=(1, 1)), inputs, ["S[2]", None]
    )


def test_sum_along_one_axis_of_a_2d_mesh():
    passes = virtual_workers.PASSES[:3]  # LowerDistIR takes no mesh of two axes
    check_refused(
        "sum", lambda x: relax.op.sum(x, 1), [integers(4, 6)], ["S[0], S[1]"], (2, 2), passes
    )


@pytest.mark.parametrize("placements", [("S[0]", None, None), (None, "S[1]", None)])
def test_products_are_accepted(placements):
    def make(x, w, bias):
        return relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w), bias))

    check_accepted(make, [integers(4, 8), integers(8, 6), integers(6)], placements)


def test_reductions_on_a_1d_mesh_are_accepted():
    check_accepted(lambda x: relax.op.sum(x, 1), [integers(4, 8)], ["S[1]"])
    check_accepted(lambda x: relax.op.max(x, 0), [integers(4, 8)], ["S[1]"])
    check_accepted(relax.op.matmul, [integers(4, 8), integers(8, 6)], ["S[1]", "S[0]"])


def test_reshapes_and_transposes_are_accepted():
    def heads(x):
        return relax.op.permute_dims(relax.op.reshape(x, (1, 4, 2, 8)), (0, 2, 1, 3))

    check_accepted(heads, [integers(1, 4, 16)], ["S[2]"])


if __name__ == "__main__":
    tvm.testing.main()
