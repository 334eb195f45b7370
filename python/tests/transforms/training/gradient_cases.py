# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calls whose gradients are proved, besides those by which rules are: attributes, broadcasting."""

from __future__ import annotations

import dataclasses

import numpy as np
from tvm import relax

from tvm_distir.execution.rule_validation.cases import case, var
from tvm_distir.execution.rule_validation.draws import bits, index_below, positive

op = relax.op
nn = op.nn
image = op.image


def half(*values):
    return relax.const(np.array(values, "float32"), "float32")


def index(*shape, dtype="int64"):
    return var(*shape, dtype=dtype)


def zeros_among(rng, shape):
    """Numbers from 1 to 2, every third of them 0."""
    result = rng.uniform(1, 2, shape)
    result.reshape(-1)[::3] = 0
    return result


CONSTANTS = [
    case(op.power(var(3, 2), half(3.0))),
    case(op.power(half(2.0), var(3, 2))),
    case(op.where(var(3, 4, dtype="bool"), var(4), half(0.0)), {0: bits}),
    case(op.maximum(var(3, 2), half(0.5))),
    case(op.einsum((var(2, 3), half(1.0, 2.0, 3.0)), "ij,j->i")),
    case(op.clip(var(5), 0.2, 1.1)),
]
AXES = [
    *(
        case(make(var(2, 3, 2), axis=[-1, 0], keepdims=remaining))
        for make in (op.max, op.prod, op.std)
        for remaining in (False, True)
    ),
    case(op.sum(var(2, 3, 2), axis=[-1, 0])),
    case(op.mean(var(2, 3, 2), axis=[-1, -2], keepdims=True)),
    case(op.variance(var(2, 3), axis=-1, keepdims=True)),
    case(op.prod(var(3, 4), axis=1), {0: zeros_among}),
    case(op.cumprod(var(3, 4), axis=1), {0: zeros_among}),
    case(op.cumprod(var(7), axis=0, exclusive=True), {0: zeros_among}),
    case(op.cumsum(var(2, 3), exclusive=True)),
    case(op.cumprod(var(2, 3), exclusive=True)),
    case(op.median(var(2, 3))),
    case(op.median(var(2, 4))),
    case(nn.softplus(var(6), 2.0, 0.5)),
    case(nn.softmax(var(2, 3, 2), axis=-2)),
    case(op.concat([var(2, 3)], 0)),
    case(op.stack([var(2, 3)], 0)),
    case(op.split(var(6), [2, 5], 0)),
    case(op.split(var(2, 5), 2, 1)),
    case(op.expand_dims(var(2, 3), [-1, 0])),
    case(op.squeeze(var(1, 3, 1), [-1])),
    case(op.tile(var(2, 1, 2), (3, 1, 2, 2))),
    case(op.layout_transform(var(2, 4), lambda i, j: (j // 2, i, j % 2))),
]
MATRICES = [
    case(op.matmul(var(2), var(3, 2, 4))),
    case(op.matmul(var(3, 4, 2), var(2))),
    case(op.matmul(var(2, 1, 3, 2), var(4, 2, 3))),
    case(op.einsum((var(2, 3, 3),), "bii->b")),
    case(op.einsum((var(3, 3), var(3)), "ii,i->i")),
    case(op.einsum((var(2, 3), var(2, 3), var(3)), "ij,ij,j")),
    case(op.einsum((var(2, 2, 3), var(3, 4)), "...j,jk->...k")),
    case(op.einsum((var(2, 3, 2),), "ijk->j")),
]
SLICES = [
    case(op.strided_slice(var(7), [0], [1], [7], [3])),
    case(op.strided_slice(var(7, 2), [0], [-2], [0], [-2])),
    case(op.strided_slice(var(7), [0], [6], [-8], [-3])),
    case(op.strided_slice(var(5, 6), [0, 1], [3, -1], [-6, -7], [-1, -2])),
    case(op.strided_slice(var(5, 6), [1, 0], [1, 1], [6, 4], [2, 1])),
    case(op.slice_scatter(var(7), var(3), 1, 7, 2, axis=0)),
    case(op.slice_scatter(var(2, 7), var(2, 2), 2, 4, 1, axis=-1)),
]
PADS = [
    *(
        case(nn.pad(var(3, 4), widths, mode))
        for mode in ("reflect", "replicate", "circular")
        for widths in ((1, 2, 0, 3), (2, 0, 3, 1))
    ),
    case(nn.pad(var(3, 4), (1, -1, -2, 3))),
]
LOOKED_UP = [
    case(op.take(var(4, 3), index(5), axis=0, mode="clip"), {1: lambda r, s: [-7, 0, 3, 3, 9]}),
    case(op.take(var(4, 3), index(5), axis=0, mode="wrap"), {1: lambda r, s: [-7, 0, 3, 3, 9]}),
    case(op.gather_elements(var(4, 3), index(2, 3), axis=0), {1: lambda r, s: np.full(s, 3)}),
    case(op.gather_nd(var(2, 3, 4), index(2, 5, 1), batch_dims=1), {1: index_below(3)}),
    case(op.gather_nd(var(2, 3, 4), index(2, 3, 1), batch_dims=2), {1: index_below(4)}),
    case(
        op.index_tensor(var(4, 3), [index(2, 2), index(2)]),
        {1: lambda r, s: [[0, 1], [0, 3]], 2: lambda r, s: [2, 2]},
    ),
    case(op.index_put(var(4), [index(3)], var(3)), {1: lambda r, s: [0, 2, 1]}),
    case(op.index_put(var(4), [index(3)], var(3), accumulate=True), {1: lambda r, s: [0, 2, 0]}),
]


def repeated(rng, shape):
    """Places that are written twice."""
    return np.arange(np.prod(shape)).reshape(shape) % 2


WRITTEN = [
    *(
        case(op.scatter_elements(var(3, 4), index(3, 3), var(3, 3), 1, how), {1: repeated, 2: draw})
        for how, draw in (
            ("add", positive),
            ("mul", zeros_among),
            ("max", positive),
            ("min", positive),
        )
    ),
    *(
        case(
            op.scatter_nd(var(4, 3), index(3, 1), var(3, 3), how), {1: lambda r, s: [[0], [2], [0]]}
        )
        for how in ("add", "mul", "max", "min")
    ),
]
WIDE = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
CONVOLUTIONS = [
    case(nn.conv2d(var(2, 5, 4, 2), var(3, 2, 2, 3), strides=2, padding=(1, 0, 1, 1), **WIDE)),
    case(nn.conv2d(var(2, 4, 5, 4), var(3, 2, 1, 4), groups=4, dilation=(1, 2), **WIDE)),
    case(nn.conv3d(var(2, 4, 4, 3, 3), var(6, 2, 2, 2, 2), groups=2, strides=(2, 1, 2), padding=1)),
    case(nn.conv3d(var(1, 2, 5, 3, 2), var(2, 1, 2, 2, 1), groups=2, dilation=(2, 1, 1))),
    case(nn.conv3d_transpose(var(1, 2, 2, 2, 2), var(2, 1, 3, 2, 1), groups=2, strides=(2, 1, 1))),
    case(nn.conv1d(var(2, 7, 2), var(3, 2, 2), strides=2, data_layout="NWC", kernel_layout="WIO")),
]
POOLS = [
    *(
        case(getattr(nn, f"{kind}_pool2d")(var(*shape), *args, **more))
        for kind in ("max", "avg")
        for shape, args, more in (
            ((1, 1, 5, 7), ((3, 2), (2, 3), (1, 0, 1, 1)), {}),
            ((1, 2, 3, 3), ((3, 3), (1, 1)), {}),
            ((1, 2, 2, 5), ((2, 3), (1, 1)), {}),
            ((2, 1, 6, 2), ((2, 2), (1, 1)), {}),
            ((1, 1, 6, 3), ((3, 3), (1, 2), (1, 0)), {}),
            ((1, 4, 3, 2), ((3, 2), (2, 2), (1, 1)), {"layout": "NHWC"}),
            ((1, 1, 5, 6), ((2, 2), (3, 2)), {"ceil_mode": True}),
            ((1, 1, 4, 4), ((3, 3), (2, 2), (1, 1)), {"ceil_mode": True}),
            ((1, 1, 4, 4), ((3, 3), (2, 2), (1, 1)), {"count_include_pad": True}),
            (
                (1, 1, 6, 4),
                ((3, 3), (2, 2), (1, 0)),
                {"ceil_mode": True, "count_include_pad": True},
            ),
        )
    ),
    *(
        case(getattr(nn, f"{kind}_pool1d")(var(*shape), *args, **more))
        for kind in ("max", "avg")
        for shape, args, more in (
            ((2, 7, 2), (3, 2, 1), {"layout": "NWC"}),
            ((1, 2, 5), (4, 2, 1), {"ceil_mode": True}),
        )
    ),
    *(
        case(getattr(nn, f"{kind}_pool3d")(var(*shape), *args, **more))
        for kind in ("max", "avg")
        for shape, args, more in (
            ((1, 4, 3, 4, 2), (2, 2, 1), {"layout": "NDHWC"}),
            ((1, 2, 5, 3, 3), ((3, 2, 2), 2), {"ceil_mode": True}),
        )
    ),
    *(
        case(getattr(nn, f"{kind}_pool2d")(var(1, 1, 7, 6), (3, 2), **more))
        for kind in ("max", "avg")
        for more in (
            {"dilation": (2, 3), "padding": (1, 2, 2, 0)},
            {"dilation": 2, "strides": (2, 1), "padding": 1, "count_include_pad": True},
            {"dilation": (1, 2), "strides": 3, "ceil_mode": True},
        )
    ),
    case(nn.max_pool1d(var(1, 6, 2), 2, dilation=2, layout="NWC")),
    case(nn.adaptive_avg_pool2d(var(1, 2, 5, 7), (3, 2))),
    case(nn.adaptive_avg_pool2d(var(1, 5, 4, 2), (2, 3), layout="NHWC")),
    case(nn.adaptive_avg_pool1d(var(1, 2, 7), 3)),
]
MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn")
IMAGES = [
    *(
        case(
            image.resize2d(
                var(1, 1, 3, 4), (5, 3), method=method, coordinate_transformation_mode=mode
            )
        )
        for method in ("nearest_neighbor", "linear", "cubic")
        for mode in MODES
    ),
    *(
        case(
            image.resize2d(
                var(1, 1, 4, 3),
                (6, 6),
                method="nearest_neighbor",
                rounding_method=rounding,
                coordinate_transformation_mode=mode,
            )
        )
        for rounding in ("round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for mode in ("half_pixel", "asymmetric")
    ),
    case(image.resize2d(var(1, 3, 4, 1), (5, 6), layout="NHWC", method="cubic", cubic_exclude=1)),
    case(image.resize3d(var(1, 1, 2, 3, 2), (3, 2, 4))),
    *(
        case(
            image.grid_sample(
                var(1, 2, 3, 4), var(1, 2, 2, 3), padding_mode=mode, align_corners=ends
            ),
            {1: lambda r, s: r.uniform(-1.7, 1.7, s)},
        )
        for mode in ("zeros", "border", "reflection")
        for ends in (False, True)
    ),
    case(
        image.grid_sample(var(1, 2, 3, 4), var(1, 2, 2, 3), method="nearest"),
        {1: lambda r, s: r.uniform(-1.2, 1.2, s)},
    ),
    case(image.affine_grid(var(2, 3, 4), (2, 3, 2))),
    case(op.dequantize(var(2, 3, dtype="int8"), var(), var(dtype="int8"), -1)),
]
NORMS = [
    case(
        nn.batch_norm(var(2, 3, 2), *(var(3) for _ in range(4)), 1, training=t, center=False),
        {4: positive},
    )
    for t in (False, True)
] + [
    case(nn.layer_norm(var(3, 5), var(5), var(5), -1)),
    case(nn.attention(var(1, 3, 2, 2), var(1, 4, 2, 2), var(1, 4, 2, 2), scale=0.7)),
    case(
        nn.attention(
            var(1, 3, 2, 2),
            var(1, 4, 2, 2),
            var(1, 4, 2, 2),
            bias=var(1, 2, 3, 4),
            causal_mask="TopLeft",
        )
    ),
]

CASES = [
    dataclasses.replace(c, name=f"more {i} {c.name}")
    for i, c in enumerate(
        [
            *CONSTANTS,
            *AXES,
            *MATRICES,
            *SLICES,
            *PADS,
            *LOOKED_UP,
            *WRITTEN,
            *CONVOLUTIONS,
            *POOLS,
            *IMAGES,
            *NORMS,
        ]
    )
]
