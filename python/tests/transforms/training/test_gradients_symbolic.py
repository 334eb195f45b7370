# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients where the number of samples is a symbol: they are written, and typed as operands."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import relax, tirx

from tests.transforms.training import gradient_harness as h
from tvm_distir.execution.rule_validation.cases import Case

op, nn, image = relax.op, relax.op.nn, relax.op.image
SAMPLES = tirx.Var("n", "int64")
NEAREST = {
    "method": "nearest_neighbor",
    "coordinate_transformation_mode": "asymmetric",
    "rounding_method": "floor",
}


def x(*shape, dtype="float32"):
    return relax.Var("x", relax.TensorType([SAMPLES, *shape], dtype))


def w(*shape):
    return relax.Var("w", relax.TensorType(list(shape), "float32"))


def index(*shape):
    return x(*shape, dtype="int64")


CALLS = [
    op.max(x(3), 1),
    op.min(x(3), 0),
    op.prod(x(3), 1),
    op.std(x(3), 1),
    op.variance(x(3), 1),
    op.cumsum(x(3), 1),
    op.cumprod(x(3), 1),
    op.strided_slice(x(7), [1], [1], [7], [2]),
    op.strided_slice(x(7), [1], [1], [5]),
    nn.pad(x(4), (0, 0, 1, 1), "reflect"),
    nn.pad(x(4), (0, 0, 1, 1)),
    nn.prelu(x(3), w(3)),
    op.gather_elements(x(3), index(3), 1),
    op.sort(x(3), 1),
    op.topk(x(3), 2, 1),
    op.tile(x(3), (1, 2)),
    op.repeat(x(3), 2, 1),
    op.stack([x(3), x(3)], 1),
    op.flip(x(3), 1),
    nn.max_pool2d(x(2, 4, 4), (2, 2), (2, 2)),
    nn.avg_pool2d(x(2, 4, 4), (3, 3), (2, 2), (1, 1), ceil_mode=True),
    nn.max_pool1d(x(2, 4), 2),
    nn.max_pool3d(x(2, 4, 4, 4), 2, 2),
    nn.avg_pool3d(x(2, 4, 4, 4), 2, 2),
    nn.adaptive_avg_pool2d(x(2, 4, 4), 1),
    nn.adaptive_avg_pool2d(x(2, 4, 4), 2),
    image.resize2d(x(2, 3, 3), (5, 5)),
    image.resize2d(x(2, 3, 3), (6, 6), **NEAREST),
    image.grid_sample(x(2, 3, 3), x(2, 4, 4)),
    image.affine_grid(x(2, 3), (3, 3)),
    op.einsum((x(3), w(3, 4)), "bi,ij->bj"),
    op.einsum((x(3, 3),), "bii->b"),
    op.matmul(x(3), w(3, 2)),
    op.matmul(x(5, 3), w(3, 2)),
    op.where(x(3, dtype="bool"), x(3), w(3)),
    op.maximum(x(3), w(3)),
    op.power(x(3), relax.const(2.0, "float32")),
    nn.conv2d(x(2, 4, 4), w(3, 2, 2, 2)),
    nn.conv2d(x(4, 4, 2), w(2, 2, 2, 3), data_layout="NHWC", kernel_layout="HWIO"),
    nn.conv2d(x(4, 4, 4), w(4, 1, 2, 2), groups=4),
    nn.conv3d(x(4, 4, 4, 4), w(4, 1, 2, 2, 2), groups=4),
    nn.layer_norm(x(3), w(3), w(3), -1),
    nn.group_norm(x(4, 2, 2), w(4), w(4), 2, 1, [2, 3]),
    nn.batch_norm(x(4), w(4), w(4), w(4), w(4), 1),
    nn.attention(x(3, 2, 4), x(3, 2, 4), x(3, 2, 4)),
    nn.attention(x(3, 2, 4), x(3, 2, 4), x(3, 2, 4), causal_mask="TopLeft"),
    op.take(w(5, 3), index(), axis=0),
    op.scatter_elements(x(3), index(3), x(3), 1, "max"),
    op.collapse_sum_to(x(3), (3,)),
    op.concat([x(3), x(2)], 1),
    op.concat([x(3)], 1),
    op.split(x(4), 2, 1),
    nn.pixel_shuffle(x(4, 2, 2), 2),
    op.slice_scatter(x(7), x(2), 1, 5, 2, axis=1),
    op.index_tensor(w(5, 3), [index()]),
    op.squeeze(x(1, 3), [1]),
    op.clip(x(3), 0, 1),
    op.mean(x(3), 1),
    op.sum(x(3)),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.op.name).removeprefix("relax."))
def test_gradients_of_symbolic_samples(call):
    main = h.backward(Case("x", call), "float32")["main"]
    operands = [p.ty for p in main.params if h.is_float(p.ty) and p.name[0] == "x"]
    gradients = list(main.ret_ty.fields)[1:]
    for operand, gradient in zip(operands, gradients, strict=True):
        assert tvm_ffi.structural_equal(operand, gradient)
