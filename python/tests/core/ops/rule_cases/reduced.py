# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define calls that reduce, scan or look up along a sharded dim: dtypes, ties, attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvm_distir.execution.rule_validation.cases import Case, case, var
from tvm_distir.execution.rule_validation.draws import index_below, positive

op = relax.op
nn = op.nn


def _half(*shape: int) -> relax.Var:
    return var(*shape, dtype="float16")


def some_ignored(count: int, ignored: int) -> Any:
    """Draw targets, about a third of which are ignored."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        integers = rng.integers(0, count, shape)
        return np.where(rng.random(shape) < 0.35, ignored, integers)

    return draw


#: float16: TVM's kernels round after each sum of halves; statistics in float32 do not differ.
NARROW = [
    case(nn.softmax(_half(4, 6), axis=-1), {}, 2e-3),
    case(nn.log_softmax(_half(3, 5), axis=-1), {}, 2e-2),
    case(nn.layer_norm(_half(4, 6), _half(6), _half(6), -1), {}, 2e-2),
    case(nn.rms_norm(_half(4, 7), _half(7), -1), {}, 2e-2),
    case(nn.group_norm(_half(2, 4, 6), _half(4), _half(4), 2, 1, [2]), {}, 2e-2),
    case(nn.instance_norm(_half(2, 4, 6), _half(4), _half(4), 1, [2]), {}, 2e-2),
    case(op.variance(_half(4, 6), 1), {}, 2e-2),
    case(op.cumsum(_half(4, 6), 1)),
    case(op.argmax(_half(4, 6), 1)),
]
TIES = [
    *(
        case(make(var(*s), axis=axis, keepdims=keepdims))
        for make in (op.argmax, op.argmin)
        for s, axis, keepdims in (((4, 9), 1, True), ((8, 3), 0, False), ((2, 3, 6), -1, False))
    ),
    case(op.argmax(var(4, 6, dtype="int32"), axis=1)),
    *(
        case(op.topk(var(*s), k, axis=axis, **more))
        for s, k, axis, more in (
            ((4, 9), 4, 1, {}),
            ((7, 2), 5, 0, {"largest": False}),
            ((6, 3), 2, 0, {"ret_type": "indices", "dtype": "int64"}),
        )
    ),
    case(op.topk(var(4, 6, dtype="int32"), 2, axis=1)),
    case(op.topk(var(4, 6), 0, axis=1)),
]
SCANS = [
    case(op.cumsum(var(4, 7, dtype="int32"), axis=1)),
    case(op.cumsum(var(9, 2), axis=0, exclusive=True)),
    case(op.cumsum(var(3, 6, dtype="int32"), axis=1, dtype="float32")),
    case(op.cumprod(var(5, 7), axis=1)),
    case(
        op.cumprod(
            var(
                8,
            ),
            axis=0,
            exclusive=True,
        )
    ),
]
LOOKED_UP = [
    *(
        case(
            nn.nll_loss(
                var(*s),
                var(*(s[:1] + s[2:]), dtype="int32"),
                *([var(s[1])] if weighted else []),
                reduction=how,
                ignore_index=2,
            ),
            {1: some_ignored(s[1], 2), 2: positive},
            1e-5 if how == "mean" else 0.0,
        )
        for s in ((4, 6), (5, 7, 2))
        for weighted in (False, True)
        for how in ("sum", "none", "mean")
    ),
    *(
        case(
            op.grad.nll_loss_backward(
                var(*((s[:1] + s[2:]) if how == "none" else ())),
                var(*s),
                var(*(s[:1] + s[2:]), dtype="int32"),
                *([var(s[1])] if weighted else []),
                reduction=how,
                ignore_index=2,
            ),
            {2: some_ignored(s[1], 2), 3: positive},
            1e-5 if how == "mean" else 0.0,
        )
        for s in ((4, 6), (5, 7, 2))
        for weighted in (False, True)
        for how in ("sum", "none", "mean")
    ),
    case(nn.nll_loss(var(6), var(dtype="int64"), reduction="sum"), {1: index_below(6)}),
    case(
        op.grad.take_backward(var(9, 2), var(7, 2), var(9, dtype="int64"), axis=0),
        {2: index_below(7)},
    ),
    case(
        op.grad.take_backward(var(2, 6, 3), var(2, 5, 3), var(6, dtype="int32"), axis=1),
        {2: index_below(5)},
    ),
]

CASES: list[Case] = [*NARROW, *TIES, *SCANS, *LOOKED_UP]
