# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The chains of layers that reproducers of time and depth propagate through."""

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.relax.op import add, matmul
from tvm.relax.op.distributed import annotate_sharding
from tvm.relax.op.nn import relu

WIDTH = 8


def chain(layers: int, annotated: int) -> ir.IRModule:
    """Return `layers` times matmul, relu, matmul, add; the first ones' products are annotated."""
    mesh = DeviceMesh((2,), ir.Range(0, 2))
    shapes = {"x": (WIDTH, WIDTH), "up": (WIDTH, WIDTH), "down": (WIDTH, WIDTH), "bias": (WIDTH,)}
    params = {name: relax.Var(name, relax.TensorType(s, "float32")) for name, s in shapes.items()}
    builder = relax.BlockBuilder()
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            y = params["x"]
            for layer in range(layers):
                h = builder.emit(matmul(y, params["up"]))
                if layer < annotated:
                    h = builder.emit(annotate_sharding(h, mesh, Placement.from_text("S[0]")))
                h = builder.emit(matmul(builder.emit(relu(h)), params["down"]))
                y = builder.emit(add(h, params["bias"]))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    return mod
