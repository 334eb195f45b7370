# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define calls of ops that move elements, join tensors, reduce, normalize, scan and sort."""

from __future__ import annotations

from tvm import relax

from tvm_distir.execution.rule_validation.cases import Case, case, var
from tvm_distir.execution.rule_validation.draws import Draw, distinct, index_below, positive

op = relax.op
nn = op.nn
W = var

RESHAPES = [
    ((2, 4, 6), (8, 6)),
    ((8, 6), (4, 2, 2, 3)),
    ((4, 6), (6, 4)),
    ((1, 4, 1, 6), (4, 1, 6)),
    ((4, 6), (-1, 3)),
    ((6, 5), (3, 2, 5)),
    ((7, 4), (7, 2, 2)),
    ((2, 3, 4, 5), (6, 20)),
    ((5,), (5, 1)),
    ((2, 3, 5), (3, 10)),
]
MOVES = [
    *(case(op.permute_dims(var(*s), order)) for s, order in (((2, 4, 6), [2, 0, 1]),)),
    case(op.permute_dims(var(2, 4, 6))),
    case(op.permute_dims(var(3, 1, 5, 2), [0, 2, 1, 3])),
    case(op.permute_dims(var(7, 4), [-1, -2])),
    *(case(op.reshape(var(*a), b)) for a, b in RESHAPES),
    *(case(op.expand_dims(var(4, 5), axis)) for axis in (0, 1, -1, [0, 2])),
    case(op.squeeze(var(2, 1, 6))),
    case(op.squeeze(var(2, 1, 5, 1), axis=[1])),
    case(op.squeeze(var(1, 7, 1))),
    case(op.flatten(var(4, 6))),
    case(op.flatten(var(7))),
    case(op.flatten(var(1, 6, 5))),
    case(nn.batch_flatten(var(4, 3, 2))),
    case(nn.batch_flatten(var(5, 1, 6))),
    case(op.broadcast_to(var(4, 1), (2, 4, 6))),
    case(op.broadcast_to(var(5), (3, 5))),
    case(op.broadcast_to(var(1, 1), (7, 4))),
    *(
        case(op.concat([var(*s) for s in shapes], axis))
        for axis, *shapes in (
            (1, (2, 4), (2, 6)),
            (0, (3, 5), (1, 5), (2, 5)),
            (-1, (7, 1), (7, 2)),
            (0, (4,), (6,)),
        )
    ),
    *(case(op.stack([var(4, 5), var(4, 5)], axis=axis)) for axis in (0, 1, -1)),
    case(op.stack([var(7), var(7), var(7)])),
    case(op.split(var(4, 6), 2, axis=1)),
    case(op.split(var(5, 6), [1, 3], axis=1)),
    case(op.split(var(4, 6, 7), 2, axis=0)),
    case(op.split(var(4, 6, 1), 3, axis=-2)),
    case(op.strided_slice(var(4, 6, 2), [0, 1], [0, 1], [4, 5], [1, 2])),
    case(op.strided_slice(var(5, 7), [1], [2], [6])),
    case(op.strided_slice(var(5, 7), [-1], [0], [7])),
    case(op.strided_slice(var(6, 4), [0], [5], [-7], [-1])),
    case(op.strided_slice(var(6, 5), [0, 1], [0, 0], [6, 100], [2, 1])),
    case(op.repeat(var(4, 6), 2, axis=1)),
    case(op.repeat(var(4, 6), 2)),
    case(op.repeat(var(5, 1), 6, axis=1)),
    case(op.repeat(var(7, 3), 1, axis=0)),
    case(op.repeat(var(7, 3), 3, axis=-1)),
    case(op.tile(var(4, 6), (1, 2))),
    case(op.tile(var(5, 1), (1, 6))),
    case(op.tile(var(4), (6, 1))),
    case(op.tile(var(2, 3), 2)),
    case(op.tile(var(1, 7), (4, 1, 1))),
    *(case(op.flip(var(4, 5), axis)) for axis in (0, 1, -1)),
    case(nn.pad(var(4, 6), [0, 0, 1, 2])),
    case(nn.pad(var(5, 3), [1, 0, 0, 0])),
    case(nn.pad(var(4, 6), [0, 0, 1, 2], pad_value=1.0)),
    case(nn.pad(var(4, 6), [0, 0, 1, 2], "reflect")),
    case(nn.pad(var(5, 7), [0, 0, 2, 1], "replicate")),
    case(nn.pad(var(4, 1, 6), [0, 0, 1, 1, 0, 0])),
    *(case(make(var(*s), k)) for make in (op.tril, op.triu) for s, k in (((2, 4, 4), 1),)),
    *(case(make(var(5, 3, 4), -1)) for make in (op.tril, op.triu)),
    case(op.meshgrid([var(4), var(6)])),
    case(op.meshgrid([var(5), var(5)], "xy")),
    case(op.meshgrid([var(5), var(1), var(2)])),
    case(op.layout_transform(var(4, 6), lambda i, j: (j, i))),
    case(op.layout_transform(var(5, 8), lambda i, j: (i, j // 4, j % 4))),
    case(op.layout_transform(var(2, 6, 3), lambda i, j, k: (i, k, j))),
]

AXES = [(1, False), (0, True), (None, False), ([0, 2], False), ([-1], True)]


def _reductions(name: str, draw: Draw | None = None, tolerance: float = 0.0) -> list[Case]:
    draws = {} if draw is None else {0: draw}
    make = getattr(op, name)
    return [
        case(make(var(*shape), axis=axis, keepdims=keep), draws, tolerance)
        for shape in ((4, 6, 2), (5, 1, 7))
        for axis, keep in AXES
    ]


def _single_axis(name: str, draw: Draw) -> list[Case]:
    make = getattr(op, name)
    return [
        case(make(var(*shape), axis=axis, keepdims=keep), {0: draw})
        for shape, axis, keep in (
            ((4, 6), 1, False),
            ((5, 7), 0, True),
            ((3, 1, 5), -1, False),
            ((6,), None, False),
        )
    ]


REDUCTIONS = [
    *(c for name in ("sum", "max", "min", "prod") for c in _reductions(name)),
    *(c for name in ("mean", "variance", "std") for c in _reductions(name, None, 1e-5)),
    case(op.sum(var(4, 5, dtype="int32"), axis=0)),
    case(op.max(var(4, 5, dtype="int32"), axis=1)),
    case(op.min(var(5, 5, dtype="int32"))),
    case(op.mean(var(4, 6, dtype="int32"), axis=0)),
    *(c for name in ("argmax", "argmin") for c in _single_axis(name, distinct)),
    case(op.median(var(4, 5), axis=1), {0: distinct}, fills={0: 0}),
    case(op.median(var(5, 3, 2), axis=0, keepdims=True), {0: distinct}, fills={0: 0}),
    *(
        case(op.collapse_sum_to(var(*a), b))
        for a, b in (
            ((2, 4, 6), (1, 6)),
            ((5, 7), (7,)),
            ((3, 4, 5), (3, 1, 5)),
            ((4, 1, 6), (4, 1, 1)),
            ((4, 6), ()),
        )
    ),
    *(
        case(op.collapse_sum_like(var(*a), var(*b)))
        for a, b in (((2, 4, 6), (1, 6)), ((5, 7), (7,)), ((3, 1, 5), (3, 1, 1)))
    ),
    *(
        case(make(var(*s), axis=axis), {}, 1e-5)
        for make in (nn.softmax, nn.log_softmax)
        for s, axis in (((4, 6), -1), ((5, 3), 0), ((2, 7, 1), 1), ((1, 6), 1))
    ),
    *(
        case(make(var(*s), axis=axis, **more))
        for make in (op.cumsum, op.cumprod)
        for s, axis, more in (
            ((4, 6), 1, {}),
            ((5, 3), 0, {"exclusive": True}),
            ((2, 7, 1), -1, {"dtype": "float32"}),
            ((4, 3), None, {}),
        )
    ),
]
ORDERING = [
    *(
        case(op.topk(var(*s), k, axis=axis, **more), {0: distinct}, fills={0: 0})
        for s, k, axis, more in (
            ((4, 6), 2, 1, {}),
            ((5, 3), 1, 0, {"largest": False}),
            ((7, 4), 2, -1, {"ret_type": "values"}),
            ((1, 6), 3, 1, {"ret_type": "indices", "dtype": "int64"}),
        )
    ),
    *(
        case(make(var(*s), axis=axis, descending=down), {0: distinct}, fills={0: 0})
        for make in (op.sort, op.argsort)
        for s, axis, down in (((4, 6), 1, False), ((5, 3), 0, True), ((2, 7, 1), -2, False))
    ),
]

IMAGE = (2, 6, 4, 4)
NORMS = [
    case(nn.layer_norm(var(4, 6, 2), W(2), W(2), [-1]), {}, 1e-5),
    case(nn.layer_norm(var(5, 3, 4), W(3, 4), W(3, 4), [1, 2]), {}, 1e-5),
    case(nn.layer_norm(var(1, 7), W(7), W(7), -1, center=False), {}, 1e-5),
    case(nn.rms_norm(var(4, 6, 2), W(2), [-1]), {}, 1e-5),
    case(nn.rms_norm(var(5, 7), W(7), -1), {}, 1e-5),
    case(nn.rms_norm(var(2, 3, 5), W(3, 5), [1, 2]), {}, 1e-5),
    *(
        case(nn.group_norm(var(*s), W(s[1]), W(s[1]), groups, 1, axes), {}, 1e-4)
        for s, groups, axes in (
            (IMAGE, 2, [2, 3]),
            ((3, 6, 5), 3, [2]),
            ((5, 4, 1, 3), 4, [2, 3]),
            ((2, 6, 5), 1, [2]),
        )
    ),
    *(
        case(nn.instance_norm(var(*s), W(s[1]), W(s[1]), 1, axes), {}, 1e-5)
        for s, axes in ((IMAGE, [2, 3]), ((3, 5, 7), [2]), ((1, 4, 3, 2), [2, 3]))
    ),
    *(
        case(
            nn.batch_norm(
                var(*s), *(W(s[axis]) for _ in range(4)), axis, training=training, **more
            ),
            {4: positive},
            1e-5,
        )
        for training in (False, True)
        for s, axis, more in (
            (IMAGE, 1, {}),
            ((5, 7), 1, {"momentum": 0.5}),
            ((3, 2, 5), 2, {"epsilon": 1.0}),
            ((4, 6, 1), 1, {"scale": False}),
        )
    ),
]

LOSSES = [
    *(
        case(nn.cross_entropy_with_logits(var(*s), var(*s)), {}, 1e-5)
        for s in ((4, 6), (5, 3), (6,), (2, 3, 4))
    ),
    *(
        case(
            nn.nll_loss(
                var(*s),
                var(*(s[:1] + s[2:]), dtype="int64"),
                *([var(s[1])] if weighted else []),
                reduction=how,
            ),
            {1: index_below(s[1]), 2: positive},
            1e-5 if how == "mean" else 0.0,
        )
        for s in ((4, 3), (5, 3, 2), (6, 4, 1))
        for weighted in (False, True)
        for how in ("sum", "none", "mean")
    ),
    *(
        case(
            op.grad.nll_loss_backward(
                var(*((s[:1] + s[2:]) if how == "none" else ())),
                var(*s),
                var(*(s[:1] + s[2:]), dtype="int64"),
                var(s[1]),
                reduction=how,
            ),
            {2: index_below(s[1]), 3: positive},
            1e-5 if how == "mean" else 0.0,
        )
        for s in ((4, 3), (5, 3, 2), (6, 4, 1))
        for how in ("sum", "none", "mean")
    ),
]

CASES = [*MOVES, *REDUCTIONS, *ORDERING, *NORMS, *LOSSES]
