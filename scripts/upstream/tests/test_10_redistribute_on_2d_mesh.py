# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Transitions on meshes of two axes are legalized, and give the same tensor."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement
from tvm.relax.op.distributed import redistribute


def transition(mesh, before, after):
    """A module that redistributes an (8, 4) tensor."""
    devices = DeviceMesh(mesh, ir.Range(0, int(np.prod(mesh))))
    tensor = relax.TensorType((8, 4), "float32")
    x = relax.Var("x", DTensorType(tensor, devices, Placement.from_text(before)))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = redistribute(x, devices, Placement.from_text(after))
            out = builder.emit_output(builder.emit(y))
        builder.emit_func_output(out)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("num_input", 1)
    mod.update_global_info("mesh", [devices])
    return mod


def check(mesh, before, after):
    x = np.arange(32, dtype="float32").reshape(8, 4)
    mod = transition(mesh, before, after)
    result = virtual_workers.run(mod, [x], passes=["LegalizeRedistribute"], legalize=False)
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize(
    "before, after",
    [
        ("S[0], R", "S[0], S[1]"),
        ("S[0], S[1]", "S[0], R"),
        ("S[0], S[1]", "R, S[1]"),
        ("S[0], R", "R, S[0]"),
    ],
)
def test_on_a_2d_mesh(before, after):
    check((2, 2), before, after)


if __name__ == "__main__":
    tvm.testing.main()
