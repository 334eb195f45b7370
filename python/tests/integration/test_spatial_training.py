# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Training steps of convolutional nets on images cut by rows: equal, and what neighbours send."""

from __future__ import annotations

from collections import Counter

import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.planning.strategies.composition import make_plan

nn, op = relax.op.nn, relax.op
MESHES = {"spatial_parallel": {"sp": 2}, "data_parallel+spatial_parallel": {"dp": 2, "sp": 2}}


def model(shapes, write, batch, columns):
    """``main(x, *weights)``: x is (batch, 3, 32, columns)."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([batch, 3, 32, columns], "float32"))
    weights = {n: relax.Var(n, relax.TensorType(list(s), "float32")) for n, s in shapes.items()}
    with builder.function("main", [x, *weights.values()], attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(write(builder.emit, x, **weights))
        builder.emit_func_output(out)
    return builder.get()


def unet():
    """3x3, down by a max pool, 3x3, up by a transposed convolution, a skip connection, 3x3."""

    def write(emit, x, first, inner, up, last):
        fine = emit(nn.relu(emit(nn.conv2d(x, first, padding=1))))
        coarse = emit(nn.max_pool2d(fine, (2, 2), (2, 2)))
        coarse = emit(nn.relu(emit(nn.conv2d(coarse, inner, padding=1))))
        grown = emit(nn.conv2d_transpose(coarse, up, strides=2))
        both = emit(op.concat([fine, grown], axis=1))
        return nn.conv2d(both, last, padding=1)

    shapes = {"first": (4, 3, 3, 3), "inner": (8, 4, 3, 3), "up": (8, 4, 2, 2)}
    return model({**shapes, "last": (1, 8, 3, 3)}, write, 2, 8)


def resnet():
    """Stem, max pool 3x3, a block of stride 2 with a depthwise 3x3, average pool, linear layer."""

    def write(emit, x, stem, single, deep, short, head):
        y = emit(nn.relu(emit(nn.conv2d(emit(nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1])), stem))))
        y = emit(nn.max_pool2d(y, (3, 3), (2, 2), (1, 1)))
        inner = emit(nn.relu(emit(nn.conv2d(y, single, strides=2, padding=1))))
        inner = emit(nn.conv2d(inner, deep, padding=1, groups=4))
        y = emit(op.add(emit(nn.conv2d(y, short, strides=2)), inner))
        y = emit(nn.avg_pool2d(emit(nn.relu(y)), (2, 2), (1, 1), (1, 1), count_include_pad=True))
        return op.matmul(emit(op.mean(y, [2, 3])), head)

    shapes = {"stem": (4, 3, 3, 3), "single": (4, 4, 3, 3), "deep": (4, 1, 3, 3)}
    return model({**shapes, "short": (4, 4, 1, 1), "head": (4, 5)}, write, 4, 32)


def collectives(dist):
    """Kind, mesh axes and shape of the result, in order."""
    program = td.export(dist)
    return [
        (op.collective, tuple(op.mesh_axes), tuple(function.values[op.outputs[0]].shape))
        for function, op in program.executed(program.entries[0].function)
        if op.kind == "collective"
    ]


#: Rows that travel per step, by their channels and columns: data of the forward op (which the
#: weight's gradient reads again), then the fewer of the rows of the result's gradient and of the
#: data's. Nothing travels for the first data's gradient, nor for windows that do not overlap.
UNET_ROWS = Counter({(3, 8): 2, (4, 4): 2 + 2, (8, 8): 2, (1, 8): 2})


@pytest.mark.parametrize("text", MESHES)
def test_a_unet_sends_rows_only(text):
    step = td.train_step(unet(), loss="mse", rate=0.5)
    plan = make_plan(step, text, MESHES[text])
    dist = td.distribute(step, plan)
    assert td.verify(step, plan, dist=dist).equal
    result = collectives(dist)
    assert {kind for kind, *_ in result} == {"collective_permute", "all_reduce"}
    rows = [shape for kind, _, shape in result if kind == "collective_permute"]
    batch = 2 // MESHES[text].get("dp", 1)
    assert Counter(rows) == {(batch, c, 1, w): n for (c, w), n in UNET_ROWS.items()}
    everywhere = tuple(range(len(MESHES[text])))
    summed = [shape for kind, axes, shape in result if kind == "all_reduce" and axes == everywhere]
    assert {(4, 3, 3, 3), (8, 4, 3, 3), (8, 4, 2, 2), (1, 8, 3, 3)} <= set(summed)


#: The same: the padded stem; the max pool, there and back; a 3x3 of stride 2 and its gradient; a
#: grouped one of stride 1 (whose weight's gradient reads the data in another shape) and an average.
RESNET_ROWS = Counter(
    {
        (3, 1, 32): 2,
        (4, 1, 32): 1 + 1,
        (4, 1, 16): 1,
        (4, 1, 8): 1 + 2 + 2 + 1,
        (4, 1, 1, 8): 2,
        (4, 1, 9): 1,
    }
)


@pytest.mark.parametrize("text", MESHES)
def test_a_resnet_gathers_no_activation(text):
    """Explicit padding folded, groups, a 1x1 of stride 2, pools that overlap."""
    step = td.train_step(resnet(), rate=0.5)
    plan = make_plan(step, text, MESHES[text])
    dist = td.distribute(step, plan)
    assert td.verify(step, plan, dist=dist).equal
    images = [c for c in collectives(dist) if len(c[2]) >= 4]
    assert {kind for kind, *_ in images} == {"collective_permute", "all_reduce"}
    rows = [shape for kind, _, shape in images if kind == "collective_permute"]
    batch = 4 // MESHES[text].get("dp", 1)
    assert Counter(rows) == {(batch, *shape): n for shape, n in RESNET_ROWS.items()}
    summed = {shape for kind, _, shape in images if kind == "all_reduce"}
    assert summed == {(4, 3, 3, 3), (4, 4, 3, 3), (4, 1, 3, 3), (4, 4, 1, 1)}
