# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation takes linear time in annotations."""

import time

import tvm.testing
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.relax.op import add, matmul
from tvm.relax.op.distributed import annotate_sharding
from tvm.relax.op.nn import relu


def chain(layers):
    """Layers of two products with relu between; the first product of each is annotated."""
    mesh = DeviceMesh((2,), ir.Range(0, 2))
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    weights = [relax.Var(name, relax.TensorType((8, 8), "float32")) for name in ("up", "down")]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights]):
        with builder.dataflow():
            y = x
            for _ in range(layers):
                h = builder.emit(matmul(y, weights[0]))
                h = builder.emit(annotate_sharding(h, mesh, Placement.from_text("S[0]")))
                y = builder.emit(add(y, builder.emit(matmul(relu(h), weights[1]))))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    return mod


def seconds(layers, rounds):
    """CPU time of the pass, the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        mod = chain(layers)
        start = time.process_time()
        relax.distributed.transform.PropagateSharding()(mod)
        best = min(best, time.process_time() - start)
    return best


def test_time_is_linear_in_annotated_layers():
    """Twice the slope of a line is allowed."""
    assert seconds(120, 3) < 8 * seconds(30, 3)


if __name__ == "__main__":
    tvm.testing.main()
