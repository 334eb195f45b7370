# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calls with sums of more terms than a narrow float can count, and their values in float64.

Each sums at least 4096 numbers of one sign, where bfloat16 stops at 256 ones and float16 at 2048.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import relax
from tvm.relax import op

TERMS = 4096


class Case(NamedTuple):
    """A call: floats by shape and largest value, or whole numbers, and its value in NumPy."""

    call: Callable[..., Any]
    value: Callable[..., Any]
    operands: tuple[Any, ...]


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _normed(x: Any, axes: Any, g: Any, b: Any) -> Any:
    moved = x - x.mean(axes, keepdims=True)
    return moved / np.sqrt((moved**2).mean(axes, keepdims=True) + 1e-5) * g + b


def _added(x: Any, places: Any, rows: Any) -> Any:
    out = np.array(x)
    np.add.at(out, places, rows)
    return out


def _transposed(x: Any, w: Any) -> Any:
    out = np.zeros((1, w.shape[1], x.shape[2] + 1, x.shape[3] + 1))
    for i in range(2):
        for j in range(2):
            out[:, :, i : i + x.shape[2], j : j + x.shape[3]] += np.einsum(
                "bchw,co->bohw", x, w[:, :, i, j]
            )
    return out


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("bhst,bthd->bshd", _softmax(scores), v)


def _batch_norm(x: Any, g: Any, b: Any, *_: Any) -> Any:
    return _normed(x, (0, 2, 3), g[:, None, None], b[:, None, None])


PLACES = np.zeros((TERMS,), "int64")
ROW, COLUMN = (2, TERMS), (TERMS, 2)
PER_TERM = ((TERMS,), (TERMS,))
CASES: dict[str, Case] = {
    "matmul": Case(op.matmul, np.matmul, (ROW, COLUMN)),
    "einsum": Case(
        lambda x, y: op.einsum((x, y), "bik,bkj->ij"),
        lambda x, y: np.einsum("bik,bkj->ij", x, y),
        ((4, 2, 1024), (4, 1024, 2)),
    ),
    "conv1d": Case(
        lambda x, w: op.nn.conv1d(x, w),
        lambda x, w: np.einsum("bcw,ocw->bo", x, w)[..., None],
        ((1, 2048, 3), (2, 2048, 3)),
    ),
    "conv2d": Case(
        lambda x, w: op.nn.conv2d(x, w),
        lambda x, w: np.einsum("bchw,ochw->bo", x, w)[..., None, None],
        ((1, 512, 3, 3), (2, 512, 3, 3)),
    ),
    "conv2d_transpose": Case(
        lambda x, w: op.nn.conv2d_transpose(x, w), _transposed, ((1, 2048, 3, 3), (2048, 2, 2, 2))
    ),
    "attention": Case(op.nn.attention, _attention, ((1, 2, 1, 8), *[(1, TERMS, 1, 8)] * 2)),
    "sum": Case(lambda x: op.sum(x, [1]), lambda x: x.sum(1), (ROW,)),
    "mean": Case(lambda x: op.mean(x, [1]), lambda x: x.mean(1), (ROW,)),
    "variance": Case(lambda x: op.variance(x, [1]), lambda x: x.var(1), (ROW,)),
    "collapse": Case(
        lambda x: op.collapse_sum_to(x, (1, 2)), lambda x: x.sum(0, keepdims=True), (COLUMN,)
    ),
    "softmax": Case(lambda x: op.nn.softmax(x, 1), _softmax, (ROW,)),
    "log_softmax": Case(
        lambda x: op.nn.log_softmax(x, 1), lambda x: np.log(_softmax(x)), (ROW,)
    ),
    "cumsum": Case(lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1), (ROW,)),
    "layer_norm": Case(
        lambda x, g, b: op.nn.layer_norm(x, g, b, [-1]),
        lambda x, g, b: _normed(x, -1, g, b),
        (ROW, *PER_TERM),
    ),
    "rms_norm": Case(
        lambda x, g: op.nn.rms_norm(x, g, [-1]),
        lambda x, g: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g,
        (ROW, PER_TERM[0]),
    ),
    "instance_norm": Case(
        lambda x, g, b: op.nn.instance_norm(x, g, b, 1, [2]),
        lambda x, g, b: _normed(x, -1, g[:, None], b[:, None]),
        ((1, *ROW), (2,), (2,)),
    ),
    "batch_norm": Case(
        lambda *x: relax.TupleGetItem(op.nn.batch_norm(*x, 1, training=True), 0),
        _batch_norm,
        ((4, 2, 32, 32), *[(2,)] * 4),
    ),
    "avg_pool2d": Case(
        lambda x: op.nn.avg_pool2d(x, (64, 64)), lambda x: x.mean((2, 3), keepdims=True),
        ((1, 2, 64, 64),),
    ),
    "nll_loss": Case(
        lambda x, t: op.nn.nll_loss(x, t, reduction="sum"), lambda x, t: -x[:, 0].sum(),
        (COLUMN, PLACES),
    ),
    "cross_entropy": Case(op.nn.cross_entropy_with_logits, lambda x, y: -x @ y, PER_TERM),
    "scatter_elements": Case(
        lambda x, i, rows: op.scatter_elements(x, i, rows, 0, "add"), _added,
        ((3,), PLACES, (TERMS,)),
    ),
    "scatter_nd": Case(
        lambda x, i, rows: op.scatter_nd(x, i, rows, "add"),
        lambda x, i, rows: _added(x, i[:, 0], rows),
        ((3, 2), PLACES[:, None], COLUMN),
    ),
    "index_put": Case(
        lambda x, i, rows: op.index_put(x, relax.Tuple([i]), rows, True), _added,
        ((3,), PLACES, (TERMS,)),
    ),
    "take_backward": Case(
        lambda rows, x, i: op.grad.take_backward(rows, x, i, 0),
        lambda rows, x, i: _added(np.zeros(x.shape), i, rows),
        (COLUMN, (3, 2), PLACES),
    ),
    "pool_gradient": Case(
        lambda g, x: op.grad.avg_pool2d_backward(
            g, x, (64, 64), (1, 1), (63,) * 4, count_include_pad=True
        ),
        lambda g, x: np.broadcast_to(g.sum((2, 3), keepdims=True) / 4096, x.shape),
        ((1, 2, 64, 64), (1, 2, 1, 1)),
    ),
}  # fmt: skip
