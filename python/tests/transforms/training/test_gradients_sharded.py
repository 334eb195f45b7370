# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Training steps of the rarer ops over two devices: what one device computes."""

from __future__ import annotations

import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.planning.strategies.composition import make_plan

op, nn = relax.op, relax.op.nn


def var(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(list(shape), dtype))


def model(params, count, write):
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(write(builder.emit, *params))
        builder.emit_func_output(result)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("num_input", count)
    return mod


def reduced():
    """Steps, slopes per channel, extremes, products, deviations."""

    def write(emit, x, w, a):
        h = emit(nn.prelu(emit(op.matmul(x, w)), a))
        h = emit(op.strided_slice(h, [1], [7], [-9], [-2]))
        top = emit(op.subtract(op.max(h, 1, keepdims=True), op.min(h, 0, keepdims=True)))
        h = emit(op.add(h, op.multiply(top, op.std(h, 0, keepdims=True))))
        return op.add(h, op.prod(emit(op.clip(h, -1, 1)), 1, keepdims=True))

    return model([var("x", 4, 6), var("w", 6, 8), var("a", 8)], 1, write)


def looked_up():
    """Places read and written, sums along a dim, an order."""

    def write(emit, x, i, w, v):
        h = emit(op.matmul(x, w))
        h = emit(op.gather_elements(h, emit(op.astype(i, "int64")), 1))
        h = emit(op.cumsum(emit(op.sort(h, 1)), 1, exclusive=True))
        h = emit(op.scatter_elements(h, emit(op.argsort(h, 1, dtype="int64")), h, 1, "add"))
        return op.einsum((h, v), "ij,kj->ik")

    params = [var("x", 4, 6), var("i", 4, 6, dtype="bool"), var("w", 6, 8), var("v", 8, 6)]
    return model(params, 2, write)


def imaged():
    """Paddings that copy, pools of three dims, resizing."""

    def write(emit, x, w):
        h = emit(nn.conv3d(x, w, padding=1, groups=2))
        h = emit(nn.max_pool3d(emit(nn.softplus(h)), 2, 2))
        h = emit(op.reshape(h, (4, 4, 4, 4)))
        h = emit(nn.pad(h, [0, 0, 0, 0, 1, 1, 2, 0], "reflect"))
        h = emit(op.image.resize2d(h, (5, 4), method="linear"))
        return nn.adaptive_avg_pool2d(h, (2, 3))

    return model([var("x", 4, 4, 4, 4, 8), var("w", 4, 2, 3, 3, 3)], 1, write)


MODELS = {"reduced": reduced, "looked_up": looked_up, "imaged": imaged}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", ["data_parallel", "tensor_parallel"])
def test_two_devices_learn_what_one_learns(name, strategy):
    step = td.train_step(MODELS[name](), "mse", rate=1.0)
    axis = {"data_parallel": "dp", "tensor_parallel": "tp"}[strategy]
    plan = make_plan(step, strategy, {axis: 2})
    report = td.verify(step, plan)
    assert report.equal, report
