# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define calls of contractions, convolutions, pools, resampling and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvm_distir.core.ir.operators import (
    attention,
    attention_backward,
    attention_bias_gradient,
    expert_matmul,
    grouped_matmul,
    grouped_outer,
    kv_append,
    paged_attention,
)
from tvm_distir.execution.rule_validation.cases import Case, case, var
from tvm_distir.execution.rule_validation.draws import Shape, distinct, index_below, unit

op = relax.op
nn = op.nn

MATMUL = [
    ((4, 6), (6, 2)),
    ((5, 7), (7, 3)),
    ((1, 6), (6, 1)),
    ((2, 4, 6), (2, 6, 3)),
    ((2, 3, 4, 6), (3, 6, 2)),
    ((1, 4, 6), (3, 6, 2)),
    ((3, 1, 5), (5, 4)),
    ((4, 6), (6,)),
    ((6,), (2, 6, 4)),
    ((6,), (6,)),
]
EINSUM = [
    ("ij,jkl->kil", (4, 6), (6, 2, 3)),
    ("ij,ik", (4, 6), (4, 2)),
    ("bij,bjk->bik", (2, 4, 5), (2, 5, 3)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 6), (2, 3, 5, 6)),
    ("...ij,...jk->...ik", (3, 4, 6), (3, 6, 2)),
    ("ij->ji", (4, 5)),
    ("ij->i", (4, 6)),
    ("ij,kj,j->ik", (2, 6), (3, 6), (6,)),
    ("ii->i", (4, 4)),
    ("i,j->ij", (4,), (7,)),
]
CONTRACTIONS = [
    *(case(op.matmul(var(*a), var(*b))) for a, b in MATMUL),
    case(op.matmul(var(4, 6, dtype="int8"), var(6, 2, dtype="int8"), out_dtype="int32")),
    *(case(op.einsum(tuple(var(*s) for s in shapes), text)) for text, *shapes in EINSUM),
    *(case(op.outer(var(n), var(m))) for n, m in ((4, 6), (5, 1), (7, 3))),
]


def _x(*shape: int) -> relax.Var:
    return var(*(shape or (2, 6, 4, 4)))


CONVOLUTIONS = [
    case(nn.conv2d(_x(), var(4, 6, 3, 3), padding=1)),
    case(nn.conv2d(_x(), var(4, 6, 2, 2), strides=2)),
    case(nn.conv2d(_x(), var(4, 6, 1, 1))),
    case(nn.conv2d(_x(), var(4, 6, 1, 1), strides=2)),
    case(nn.conv2d(_x(), var(4, 3, 3, 3), groups=2)),
    case(nn.conv2d(_x(), var(6, 1, 3, 3), groups=6)),
    case(nn.conv2d(_x(), var(12, 1, 3, 3), groups=6, padding=1)),
    case(nn.conv2d(_x(), var(4, 6, 2, 2), dilation=2)),
    case(nn.conv2d(_x(3, 5, 7, 5), var(7, 5, 3, 3), padding=[0, 1, 2, 1], strides=[2, 1])),
    case(nn.conv2d(_x(1, 3, 6, 1), var(5, 3, 1, 1))),
    case(nn.conv2d(_x(2, 4, 6, 6), var(4, 4, 3, 3), strides=3)),
    case(
        nn.conv2d(var(2, 4, 4, 6), var(3, 3, 6, 4), data_layout="NHWC", kernel_layout="HWIO"),
    ),
    case(
        nn.conv2d(var(3, 4, 4, 5), var(7, 1, 1, 5), data_layout="NHWC", kernel_layout="OHWI"),
    ),
    case(nn.conv1d(_x(2, 6, 5), var(4, 6, 3))),
    case(nn.conv1d(_x(3, 5, 6), var(7, 5, 1))),
    case(nn.conv1d(_x(2, 6, 6), var(6, 2, 2), strides=2, groups=3)),
    case(nn.conv3d(_x(2, 2, 3, 3, 3), var(2, 2, 2, 2, 2))),
    case(nn.conv3d(_x(3, 3, 4, 1, 5), var(5, 3, 1, 1, 1))),
    case(nn.conv2d_transpose(_x(), var(6, 2, 2, 2), strides=2)),
    case(nn.conv2d_transpose(_x(), var(6, 2, 3, 3), groups=2, padding=1)),
    case(nn.conv2d_transpose(_x(3, 5, 2, 3), var(5, 7, 2, 2), strides=2, output_padding=1)),
    case(nn.conv1d_transpose(_x(2, 6, 4), var(6, 2, 2))),
    case(nn.conv1d_transpose(_x(3, 4, 3), var(4, 3, 2), strides=2, groups=2)),
    case(nn.conv3d_transpose(_x(2, 4, 2, 2, 2), var(4, 3, 2, 2, 2), strides=2)),
    case(nn.conv2d_transpose(_x(1, 2, 5, 4), var(2, 6, 4, 3), strides=(2, 1), padding=1)),
    case(nn.conv2d_transpose(_x(1, 6, 7, 5), var(6, 1, 3, 2), dilation=2, padding=1, groups=2)),
    case(nn.conv2d_transpose(_x(1, 2, 4, 5), var(2, 2, 1, 2), strides=3, output_padding=(2, 0))),
]


def _weight_gradient(data: Shape, grad: Shape, groups: int = 1, **more: Any) -> Case:
    """Return the convolution that TVM's gradient of a conv2d makes: samples are its channels."""
    layouts = {"data_layout": "CNHW", "kernel_layout": "IOHW", "out_layout": "CNHW"}
    return case(nn.conv2d(var(*data), var(*grad), groups=groups, **layouts, **more))


WEIGHT_GRADIENTS = [
    _weight_gradient((4, 3, 6, 5), (4, 2, 6, 5), padding=1),
    _weight_gradient((3, 2, 8, 8), (3, 4, 4, 4), dilation=2, padding=[1, 1, 0, 0]),
    _weight_gradient((2, 3, 7, 6), (2, 2, 3, 4), strides=(2, 1), dilation=(1, 1)),
    _weight_gradient((4, 3, 5, 4), (2, 4, 5, 4), groups=2),
    case(
        nn.conv3d(
            var(4, 2, 3, 5, 4),
            var(4, 6, 1, 5, 4),
            groups=2,
            padding=(0, 1, 1),
            data_layout="DCNHW",
            kernel_layout="DOIHW",
            out_layout="DCNHW",
        )
    ),
    case(
        nn.conv1d(
            var(3, 2, 9),
            var(3, 4, 4),
            padding=1,
            dilation=2,
            data_layout="CNW",
            kernel_layout="IOW",
            out_layout="CNW",
        )
    ),
]


def _shuffled(r: int) -> Callable[[np.ndarray], np.ndarray]:
    """Rearrange ``(n, c r r, h, w)`` to ``(n, c, h r, w r)``."""

    def shuffle(data: np.ndarray) -> np.ndarray:
        n, c, h, w = data.shape
        parts = data.reshape(n, c // r // r, r, r, h, w)
        return parts.transpose(0, 1, 4, 2, 5, 3).reshape(n, c // r // r, h * r, w * r)

    return shuffle


def _pools(n: int) -> list[Case]:
    shape = (2, 6, 4, 4, 4)[: 2 + n]
    odd = (3, 5, 7, 6, 2)[: 2 + n]
    return [
        case(getattr(nn, f"{kind}_pool{n}d")(var(*s), *args), {}, 1e-6 if kind == "avg" else 0.0)
        for kind in ("max", "avg")
        for s, args in (
            (shape, ((2,) * n, (2,) * n)),
            (shape, ((3,) * n, (1,) * n, (1,) * n)),
            (odd, ((2,) * n, (1,) * n)),
            (odd, ((1,) * n, (1,) * n)),
        )
    ]


POOLS = [
    *_pools(2),
    *_pools(1),
    *_pools(3),
    case(nn.max_pool2d(var(2, 4, 4, 3), (2, 2), (2, 2), layout="NHWC")),
    case(nn.avg_pool2d(var(2, 4, 4, 4, dtype="int32"), (2, 2), (2, 2))),
    case(nn.adaptive_avg_pool2d(var(2, 4, 4, 4, dtype="int32"), 2)),
    case(nn.avg_pool2d(_x(), (3, 3), (1, 1), (1, 1), count_include_pad=True), {}, 1e-6),
    *(
        case(getattr(nn, f"adaptive_avg_pool{n}d")(var(*(3, 4, 6, 4, 2)[: 2 + n]), size), {}, 1e-6)
        for n in (1, 2, 3)
        for size in (1, 2)
    ),
]


def _pool_backward(
    name: str, size: int, stride: int, pad: int, shape: Shape = (2, 6, 4, 4)
) -> Case:
    sizes = ((size, size), (stride, stride), (pad, pad, pad, pad))
    out = relax.BlockBuilder().normalize(nn.max_pool2d(var(*shape), *sizes)).ty
    grad = var(*(int(n) for n in out.shape))
    call = getattr(op.grad, name)(grad, var(*shape), *sizes)
    return case(call, {1: distinct}, 1e-6)


BACKWARD = [
    _pool_backward(name, *args)
    for name in ("max_pool2d_backward", "avg_pool2d_backward")
    for args in (
        (2, 2, 0),
        (3, 1, 1),
        (3, 2, 1, (3, 5, 7, 7)),
        (1, 1, 0, (1, 7, 2, 3)),
        (2, 3, 0, (1, 2, 9, 6)),
        (4, 2, 1, (1, 1, 12, 10)),
    )
]


def _grid_case(shape: Shape, out: Shape, **more: Any) -> Case:
    grid = var(shape[0], 2, *out)
    return case(op.image.grid_sample(var(*shape), grid, **more), {1: unit}, 1e-5)


COPIED = {
    "method": "nearest_neighbor",
    "coordinate_transformation_mode": "asymmetric",
    "rounding_method": "floor",
}
IMAGES = [
    case(op.image.resize2d(_x(), (8, 8)), {}, 1e-5),
    case(op.image.resize2d(_x(3, 5, 4, 6), (2, 3), method="nearest_neighbor"), {}, 1e-5),
    case(op.image.resize2d(var(2, 4, 4, 3), (3, 5), layout="NHWC"), {}, 1e-5),
    case(op.image.resize2d(_x(2, 3, 4, 6), (8, 18), method="nearest_neighbor")),
    case(op.image.resize2d(var(2, 4, 6, 3), (12, 6), layout="NHWC", **COPIED)),
    case(op.image.resize2d(_x(2, 3, 4, 6), (8, 18), **{**COPIED, "rounding_method": "round"})),
    case(op.image.resize2d(_x(2, 3, 6, 6), (12, 7), **COPIED)),
    case(op.image.resize3d(_x(2, 3, 2, 4, 3), (4, 4, 6), **COPIED)),
    case(op.image.resize3d(_x(2, 3, 2, 3, 2), (4, 3, 4)), {}, 1e-5),
    _grid_case((2, 6, 4, 4), (3, 5)),
    _grid_case((3, 5, 4, 4), (2, 4), align_corners=True),
    case(op.image.affine_grid(var(4, 2, 3), (3, 5)), {}, 1e-5),
    case(op.image.affine_grid(var(5, 2, 3), (4, 2), align_corners=False), {}, 1e-5),
    case(nn.pixel_shuffle(_x(2, 12, 3, 2), 2), numpy=_shuffled(2)),
    case(nn.pixel_shuffle(_x(3, 5 * 9, 1, 2), 3), numpy=_shuffled(3)),
    case(nn.pixel_shuffle(_x(1, 4, 5, 3), 2), numpy=_shuffled(2)),
]


def _attention(q: Shape, k: Shape, bias: Shape | None = None, **more: Any) -> Case:
    d = q[3]
    v = (k[0], k[1], k[2], more.pop("features", d))
    extra = {} if bias is None else {"bias": var(*bias)}
    return case(nn.attention(var(*q), var(*k), var(*v), **extra, **more), {}, 1e-5)


ATTENTION = [
    _attention((2, 4, 6, 2), (2, 4, 6, 2)),
    _attention((3, 5, 4, 2), (3, 7, 4, 2), features=3),
    _attention((1, 4, 2, 3), (1, 1, 2, 3)),
    _attention((2, 4, 6, 2), (2, 4, 6, 2), causal_mask="TopLeft"),
    _attention((2, 3, 6, 2), (2, 5, 6, 2), causal_mask="BottomRight"),
    _attention((2, 4, 6, 2), (2, 4, 6, 2), bias=(2, 6, 4, 4)),
    _attention((2, 4, 6, 2), (2, 4, 6, 2), bias=(2, 1, 4, 4)),
    _attention((2, 4, 6, 2), (2, 4, 6, 2), bias=(1, 6, 1, 4)),
    _attention((3, 5, 7, 2), (3, 4, 7, 2), bias=(3, 7, 5, 4)),
]


def _fused(
    q: Shape,
    k: Shape,
    bias: Shape | None = None,
    shift: bool = False,
    sinks: bool = False,
    **more: Any,
) -> list[Case]:
    """Return attention with its log-sum-exp, its gradients, and the gradient of its bias."""
    v = (k[0], k[1], k[2], more.pop("features", q[3]))
    rows, out = (q[0], q[2], q[1]), (*q[:3], v[3])
    extra = [] if bias is None else [var(*bias)]
    extra += [var(dtype="int64")] if shift else []
    first = [var(*q), var(*k), var(*v)]
    saved = [var(*out), var(*out), var(*rows)]
    scores = [*extra[: bias is not None], var(q[2]), *extra[bias is not None :]]
    calls = [
        attention(*first, *(scores if sinks else extra), scale=0.5, **more),
        attention_backward(*first, *saved, *extra, scale=0.5, **more),
    ]
    if bias is not None:
        calls.append(attention_bias_gradient(*first, *saved, *extra, scale=0.5, **more))
    return [case(call, {}, 1e-4) for call in calls]


FUSED_ATTENTION = [
    *_fused((2, 4, 6, 2), (2, 4, 6, 2)),
    *_fused((3, 5, 7, 2), (3, 7, 7, 2), features=3),
    *_fused((2, 4, 6, 2), (2, 6, 2, 2), causal=True, offset=2),
    *_fused((2, 4, 6, 2), (2, 4, 2, 2), causal=True, window=2),
    *_fused((2, 5, 4, 2), (2, 4, 4, 2), (2, 4, 5, 4), causal=True),
    *_fused((2, 4, 6, 2), (2, 4, 3, 2), (1, 6, 1, 4)),
    *_fused((2, 4, 6, 2), (2, 4, 3, 2), (2, 1, 4, 4), shift=True, causal=True, cap=0.5),
    *_fused((2, 4, 6, 2), (2, 4, 3, 2), shift=True, sinks=True, causal=True),
]


def _paged(
    batch: int,
    new: int,
    cache: Shape,
    group: int = 1,
    columns: int = 2,
    start: bool = False,
    **more: Any,
) -> list[Case]:
    """Return an append to a paged cache, and attention to it."""
    _, pages, rows, heads, width = cache
    page_size = rows * (1 + start)
    tables = [var(batch, columns, dtype="int32"), var(batch, dtype="int32")]
    extra = [var(dtype="int64")] if start else []
    draws = [index_below(pages), index_below(columns * page_size - new + 1)]
    if start:
        draws.append(lambda rng, shape: np.full(shape, rows))
    append = kv_append(
        var(*cache), var(batch, new, heads, width), *tables, *extra, page_size=page_size
    )
    query = var(batch, new, heads, group, width)
    caches = [var(*cache), var(*cache)]
    attend = paged_attention(
        query, *caches, *tables, *extra, scale=0.5, page_size=page_size, **more
    )
    return [
        case(append, {2 + i: draw for i, draw in enumerate(draws)}),
        case(attend, {3 + i: draw for i, draw in enumerate(draws)}, 1e-4),
    ]


PAGED = [
    *_paged(4, 1, (4, 3, 2, 2, 2), group=2, columns=3),
    *_paged(4, 3, (2, 4, 4, 4, 2), group=2, window=2),
    *_paged(2, 2, (1, 5, 2, 2, 3), columns=2, score_cap=3.0),
    *_paged(2, 1, (2, 2, 4, 1, 4), group=4, value_width=2),
    *_paged(2, 2, (2, 3, 2, 2, 2), start=True),
]


def _group(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw ids of six groups, and one that names none of them."""
    return rng.integers(-1, 7, shape)


def _grouped(rows: int, inner: int, columns: int, groups: int = 6) -> list[Case]:
    """Return a product by groups, and the sums of outer products that differentiate it."""
    ids = var(rows, dtype="int32")
    x, y, w = var(rows, inner), var(rows, columns), var(groups, inner, columns)
    return [
        case(grouped_matmul(x, w, ids, groups), {2: _group}),
        case(grouped_outer(x, y, ids, groups, groups), {2: _group}),
    ]


EXPERTS = [
    case(expert_matmul(var(4, 6, 2), var(4, 2, 4), experts=4, top_k=2, tokens=6, slots=6)),
    case(expert_matmul(var(6, 4, 3), var(6, 3, 4), experts=8, top_k=1, tokens=2, slots=1)),
]

GROUPED = [*_grouped(6, 4, 2), *_grouped(7, 5, 3), *_grouped(4, 6, 1, groups=4)]

PRECISION = [case(op.matmul(var(4, 6, dtype="float16"), var(6, 3, dtype="float16")))]

CASES = [
    *CONTRACTIONS,
    *CONVOLUTIONS,
    *WEIGHT_GRADIENTS,
    *POOLS,
    *BACKWARD,
    *IMAGES,
    *ATTENTION,
    *FUSED_ATTENTION,
    *PAGED,
    *GROUPED,
    *EXPERTS,
    *PRECISION,
]
