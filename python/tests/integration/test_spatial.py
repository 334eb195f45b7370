# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convolutional nets with their images cut by rows and columns, the whole way."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tvm import relax

import tvm_distir as td

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def conv_net(size=32, batch=2):
    """3x3, max pool, 3x3 of stride 2, 5x5 depthwise, 1x1, average pool."""
    nn, dtype = relax.op.nn, "float32"
    builder = relax.BlockBuilder()
    shapes = {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (8, 1, 5, 5), "w3": (4, 8, 1, 1)}
    x = relax.Var("x", relax.TensorType([batch, 3, size, size], dtype))
    weights = [relax.Var(n, relax.TensorType(list(s), dtype)) for n, s in shapes.items()]
    with builder.function("main", [x, *weights]):
        with builder.dataflow():
            y = builder.emit(nn.relu(nn.conv2d(x, weights[0], padding=1)))
            y = builder.emit(nn.max_pool2d(y, (3, 3), strides=2, padding=1))
            y = builder.emit(nn.conv2d(y, weights[1], strides=2, padding=1))
            y = builder.emit(nn.relu(nn.conv2d(y, weights[2], padding=2, groups=8)))
            y = builder.emit(nn.conv2d(y, weights[3]))
            y = builder.emit_output(nn.avg_pool2d(y, (2, 2), strides=1))
        builder.emit_func_output(y)
    return builder.get()


def plan_of(axes, x, placement):
    whole = ", ".join(["R"] * len(axes))
    return td.Plan.from_dict(
        {
            "schema_version": 1,
            "mesh": axes,
            "rules": [
                {"param": "*", "placement": whole, "stationary": True},
                {"param": x, "placement": placement},
            ],
        }
    )


def moved(mod, plan):
    """Count and bytes per device of the collectives, by kind and mesh axis."""
    program = td.export(td.distribute(mod, plan))
    result = td.simulate(program, td.System.load("dgx-a100"))
    assert not result.unmodelled_ops
    return {(c.kind, c.mesh_axis): (c.count, c.bytes_per_device) for c in result.collectives}


@pytest.mark.parametrize(
    ("axes", "placement"),
    [
        ({"rows": 2}, "S[2]"),
        ({"dp": 2, "rows": 2}, "S[0], S[2]"),
        ({"rows": 2, "columns": 2}, "S[2], S[3]"),
        ({"rows": 3}, "S[2]"),
    ],
)
def test_a_conv_net_is_verified(axes, placement):
    mod, plan = conv_net(), plan_of(axes, "x", placement)
    assert td.verify(mod, plan, engine="virtual").equal
    result = moved(mod, plan)
    cut = [axis for axis in axes if axis != "dp"]
    assert all(result["collective_permute", axis][0] >= 2 for axis in cut)
    assert not any(axis == "dp" for _, axis in result)


def test_rows_of_the_first_layer_are_counted():
    """3x3 SAME alone: one row each way, half the batch of it with data parallelism."""
    nn, shape = relax.op.nn, (4, 3, 16, 10)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape), "float32"))
    w = relax.Var("w", relax.TensorType([2, 3, 3, 3], "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(nn.conv2d(x, w, padding=1))
        builder.emit_func_output(y)
    mod, row_bytes = builder.get(), 4 * 4 * 3 * 10
    assert moved(mod, plan_of({"rows": 4}, "x", "S[2]")) == {
        ("collective_permute", "rows"): (2, 2 * row_bytes)
    }
    assert moved(mod, plan_of({"dp": 2, "rows": 2}, "x", "S[0], S[2]")) == {
        ("collective_permute", "rows"): (2, row_bytes)
    }


def test_squeezenet_by_batch_and_rows():
    """Batch over one axis, rows of the image over the other: no gather, one sum at the end."""
    mod = td.load_model(str(LIGHT / "light_squeezenet.onnx"), batch=2).mod
    plan = plan_of({"dp": 2, "rows": 2}, str(mod["main"].params[0].name), "S[0], S[2]")
    assert td.verify(mod, plan, engine="virtual").equal
    result = moved(mod, plan)
    assert sorted(result) == [("all_reduce", "rows"), ("collective_permute", "rows")]
    assert result["all_reduce", "rows"][0] == 1
