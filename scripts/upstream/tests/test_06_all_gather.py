# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every transition between placements of a mesh of one axis is legalized."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement, transform
from tvm.relax.op.distributed import redistribute


def transition(before, after, shape=(8, 4, 6)):
    """A module that redistributes a tensor among two workers."""
    mesh = DeviceMesh((2,), ir.Range(0, 2))
    x = relax.Var(
        "x", DTensorType(relax.TensorType(shape, "float32"), mesh, Placement.from_text(before))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = redistribute(x, mesh, Placement.from_text(after))
            out = builder.emit_output(builder.emit(y))
        builder.emit_func_output(out)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("num_input", 1)
    mod.update_global_info("mesh", [mesh])
    return mod


@pytest.mark.parametrize(
    "passes", [("LegalizeRedistribute",), ("LegalizeRedistribute", "LowerDistIR")]
)
@pytest.mark.parametrize("before", ["S[0]", "S[1]", "S[2]"])
def test_from_sharded_to_replicated(before, passes):
    x = np.arange(192, dtype="float32").reshape(8, 4, 6)
    mod = transition(before, "R")
    result = virtual_workers.run(mod, [x], passes=passes, legalize=False)
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("before, after", [("S[0]", "S[1]"), ("S[2]", "S[0]"), ("S[1]", "S[1]")])
def test_from_one_dim_to_another(before, after):
    x = np.arange(192, dtype="float32").reshape(8, 4, 6)
    mod = transition(before, after)
    result = virtual_workers.run(mod, [x], passes=["LegalizeRedistribute"], legalize=False)
    np.testing.assert_array_equal(result, x)


def test_the_first_dim_takes_one_collective():
    mod = transform.LegalizeRedistribute()(transition("S[0]", "R"))
    (block,) = mod["main"].body.blocks
    assert sum(isinstance(binding.value, ir.Call) for binding in block.bindings) == 1


if __name__ == "__main__":
    tvm.testing.main()
