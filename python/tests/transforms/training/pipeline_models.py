# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Small models that are cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

from tvm_distir.support import update_type

WIDTH = 8


def schedule_of(kind: str, stages: int, micros: int, **more: Any) -> dict[str, Any]:
    """A schedule as plans have it; two stages per rank where they are interleaved."""
    chunks = {"chunks": 2} if kind == "interleaved" else {}
    return {"kind": kind, "stages": stages, "micro_batches": micros, **chunks, **more}


def assert_close(got: Sequence[Any], expected: Sequence[Any], atol: float = 2e-6) -> None:
    """Outputs are equal but for the rounding of sums in another order."""
    assert len(got) == len(expected)
    for number, (first, other) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(first, other, rtol=2e-5, atol=atol, err_msg=str(number))


def tower(
    layers: int, batch: int, tied: bool = True, skip: bool = False, rate: float = 0.0
) -> ir.IRModule:
    """Layers of two products; the last product reads the first one's weight where it is tied.

    With ``skip`` the value behind the first layer is added before the last product, so that it
    goes through all stages between. With a rate each layer has a dropout of it, and so has the
    first value.
    """
    builder = relax.BlockBuilder()
    square = relax.TensorType([WIDTH, WIDTH], "float32")
    x_type = relax.TensorType([batch, WIDTH], "float32")
    x, w = relax.Var("x", x_type), relax.Var("w", square)
    b = relax.Var("b", relax.TensorType([WIDTH], "float32"))
    with builder.function("layer", [x, w, b]):
        with builder.dataflow():
            h = builder.emit(relax.op.add(relax.op.matmul(x, w), b))
            h = _dropped(builder, builder.emit(relax.op.tanh(h)), rate)
            out = builder.emit_output(relax.op.add(x, h))
        builder.emit_func_output(out)
    layer = builder.get()["layer"].without_attr("global_symbol")
    gv = ir.GlobalVar("layer")
    update_type(gv, layer.ty)
    builder = relax.BlockBuilder()
    data = relax.Var("x", x_type)
    first = relax.Var("first", square)
    last = first if tied else relax.Var("last", square)
    weights = [first, *([] if tied else [last])]
    for i in range(layers):
        weights += [relax.Var(f"w{i}", square), relax.Var(f"b{i}", b.ty)]
    with builder.function("main", [data, *weights]):
        with builder.dataflow():
            value: Any = builder.emit(relax.op.matmul(data, first), "into")
            value, remaining = _dropped(builder, value, rate), None
            for i in range(layers):
                local = weights[len(weights) - 2 * (layers - i) :][:2]
                value = builder.emit(ir.Call(gv, [value, *local]), f"h{i}")
                remaining = value if remaining is None else remaining
            if skip:
                value = builder.emit(relax.op.add(value, remaining), "skipped")
            out = builder.emit_output(relax.op.matmul(value, relax.op.permute_dims(last)))
        builder.emit_func_output(out)
    main = builder.get()["main"].with_attr("num_input", 1)
    return ir.IRModule({gv: layer, ir.GlobalVar("main"): main})


def _dropped(builder: relax.BlockBuilder, value: Any, rate: float) -> Any:
    if not rate:
        return value
    both = builder.emit(relax.op.nn.dropout(value, rate))
    return builder.emit(relax.TupleGetItem(both, 0))


def normed_tower(layers: int, batch: int, shared: bool = False) -> ir.IRModule:
    """Layers of a product and a batch norm; all have the running statistics of the first one
    where these are shared.
    """
    builder = relax.BlockBuilder()
    square, vector = (relax.TensorType(s, "float32") for s in ([WIDTH, WIDTH], [WIDTH]))
    x_type = relax.TensorType([batch, WIDTH], "float32")
    types = {"w": square, "gamma": vector, "beta": vector, "mean": vector, "variance": vector}
    x, local = relax.Var("x", x_type), [relax.Var(name, ty) for name, ty in types.items()]
    with builder.function("layer", [x, *local]):
        with builder.dataflow():
            h = builder.emit(relax.op.matmul(x, local[0]))
            normed = builder.emit(relax.op.nn.batch_norm(h, *local[1:], axis=1))
            h = builder.emit(relax.op.tanh(relax.TupleGetItem(normed, 0)))
            out = builder.emit_output(relax.op.add(x, h))
        builder.emit_func_output(out)
    layer = builder.get()["layer"].without_attr("global_symbol")
    gv = ir.GlobalVar("layer")
    update_type(gv, layer.ty)
    builder, data = relax.BlockBuilder(), relax.Var("x", x_type)
    weights = [[relax.Var(f"{n}{i}", ty) for n, ty in types.items()] for i in range(layers)]
    called = [[*each[:3], *weights[0][3:]] if shared else each for each in weights]
    params = list(dict.fromkeys(var for each in called for var in each))
    with builder.function("main", [data, *params]):
        with builder.dataflow():
            value: Any = data
            for i, single in enumerate(called):
                value = builder.emit(ir.Call(gv, [value, *single]), f"h{i}")
            out = builder.emit_output(value, "out")
        builder.emit_func_output(out)
    main = builder.get()["main"].with_attr("num_input", 1)
    return ir.IRModule({gv: layer, ir.GlobalVar("main"): main})
