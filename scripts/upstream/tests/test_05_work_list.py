# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Depth is no limit of sharding propagation. Alone in its file: failing ends the process."""

import tvm.testing
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.relax.op.distributed import annotate_sharding
from tvm.relax.op.nn import relu

OPS = 40_000


def test_one_annotation_reaches_the_end_of_a_deep_chain():
    mesh = DeviceMesh((2,), ir.Range(0, 2))
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(annotate_sharding(x, mesh, Placement.from_text("S[0]")))
            for _ in range(OPS):
                y = builder.emit(relu(y))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    after = relax.distributed.transform.PropagateSharding()(mod)
    assert "S[0]" in str(after["main"].ret_ty.placement)


if __name__ == "__main__":
    tvm.testing.main()
