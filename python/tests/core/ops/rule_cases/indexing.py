# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define calls of indexing, quantization and detection ops."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_distir.execution.rule_validation.cases import Case, case, var
from tvm_distir.execution.rule_validation.draws import Shape, above_one, index_below, positive, unit

op = relax.op


def _index(*shape: int, dtype: str = "int64") -> relax.Var:
    return var(*shape, dtype=dtype)


TAKES = [
    ((6, 4), (2, 3), 0),
    ((4, 6, 2), (3,), 1),
    ((7, 3), (5,), 0),
    ((5, 1), (4,), -2),
    ((1, 6), (3,), 1),
    ((6,), (4,), 0),
    ((3, 4), (), 1),
]
READS = [
    *(case(op.take(var(*t), _index(*i), axis=a), {1: index_below(t[a])}) for t, i, a in TAKES),
    *(
        case(op.take(var(6, 4), _index(5), axis=0, mode=mode), {1: index_below(6)})
        for mode in ("clip", "wrap")
    ),
    case(op.take(var(6), _index(4)), {1: index_below(6)}),
    case(op.take(_index(6, 2, dtype="int32"), _index(4), axis=0), {1: index_below(6)}),
    *(
        case(op.gather_elements(var(*d), _index(*i), axis=a), {1: index_below(d[a])})
        for d, i, a in (
            ((4, 6), (4, 2), 1),
            ((5, 3), (2, 3), 0),
            ((2, 7, 3), (2, 4, 3), -2),
            ((4, 6), (2, 5), 1),
        )
    ),
    *(
        case(op.gather_nd(var(*d), _index(*i), batch_dims=b), {1: index_below(min(d[b:]))})
        for d, i, b in (
            ((4, 6, 2), (3, 1), 0),
            ((4, 6, 5), (3, 2), 0),
            ((2, 4, 6), (2, 3, 1), 1),
            ((5, 3), (4, 7, 2), 0),
        )
    ),
    case(
        op.index_tensor(var(4, 6, 2), [_index(3), _index(2, 1)]),
        {1: index_below(4), 2: index_below(6)},
    ),
    case(op.index_tensor(var(4, 6), [_index(5)]), {1: index_below(4)}),
    case(op.index_tensor(var(7, 3, 5), [_index(2, 3)]), {1: index_below(7)}),
    *(
        case(
            op.one_hot(_index(*i), relax.prim_value(1.0), relax.prim_value(0.0), 3, axis=a),
            {0: index_below(3)},
        )
        for i, a in (((4, 2), -1), ((5,), 0), ((3, 1, 7), 1))
    ),
    *(
        case(op.bucketize(var(*s), relax.const([-1.5, 0.0, 1.0], "float32"), right=right))
        for s, right in (((4, 6), False), ((7,), True), ((5, 1), False))
    ),
    case(op.bucketize(var(4, 6), var(3)), {1: lambda rng, s: [-1.0, 0.0, 1.5]}),
]


def _scattered(data: Shape, axis: int, reduction: str, places: Shape, update: Shape) -> Case:
    """Return every position once, so that the order of writing does not matter."""
    extent = data[axis]

    def permuted(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        return np.argsort(rng.random(shape), axis=axis) % extent

    call = op.scatter_elements(
        var(*data), _index(*places), var(*update), axis=axis, reduction=reduction
    )
    return case(call, {1: permuted})


WRITES = [
    *(
        _scattered(d, a, how, i, i)
        for how in ("update", "add", "mul", "max", "min")
        for d, i, a in (((4, 6), (4, 6), 1), ((5, 3), (4, 3), 0))
    ),
    _scattered((4, 6), 1, "add", (2, 6), (2, 6)),
    _scattered((2, 1, 7), 2, "update", (2, 1, 7), (2, 1, 7)),
    *(
        case(
            op.scatter_nd(var(*d), _index(*i), var(*u), how),
            {1: lambda rng, s: [[(3 * k) % 4] for k in range(s[0])]},
        )
        for how in ("update", "add")
        for d, i, u in (((4, 6), (2, 1), (2, 6)), ((5, 7, 2), (3, 1), (3, 7, 2)))
    ),
    *(
        case(op.slice_scatter(var(*d), var(*s), *args, axis=a))
        for d, s, args, a in (
            ((4, 6), (2, 6), (1, 3, 1), 0),
            ((5, 7), (5, 3), (0, 6, 2), 1),
            ((3, 1, 4), (3, 1, 2), (2, 4, 1), 2),
        )
    ),
    *(
        case(
            op.index_put(var(5, 4), [_index(3), _index(3)], var(3), accumulate=accumulate),
            {1: lambda rng, s: [0, 3, 4], 2: lambda rng, s: [2, 1, 2]},
        )
        for accumulate in (False, True)
    ),
    *(
        case(op.grad.take_backward(var(*g), var(*t), _index(*i), axis=a), {2: index_below(t[a])})
        for g, t, i, a in (
            ((4, 2), (6, 2), (4,), 0),
            ((3, 5), (3, 7), (5,), 1),
            ((6, 4), (5, 4), (6,), 0),
            ((6, 1, 3), (7, 1, 3), (6,), 0),
        )
    ),
    case(
        op.grad.take_backward(var(4), var(6), _index(4)),
        {2: index_below(6)},
    ),
]

QUANTIZED = [
    case(op.quantize(var(4, 6), var(), var(dtype="int8"), -1, "int8"), {1: positive}),
    case(op.quantize(var(4, 6), var(6), var(6, dtype="int8"), 1, "int8"), {1: positive}),
    case(op.quantize(var(5, 3, 2), var(5), var(5, dtype="int8"), 0, "int8"), {1: positive}),
    case(op.dequantize(var(4, 6, dtype="int8"), var(6), var(6, dtype="int8"), 1), {1: positive}),
    case(op.dequantize(var(7, 3, dtype="int8"), var(7), var(7, dtype="int8"), 0), {1: positive}),
    case(op.reverse_sequence(var(4, 6, 2), _index(4), 1, 0), {1: index_below(6)}),
    case(op.reverse_sequence(var(5, 3, 7), _index(7), 0, 2), {1: index_below(5)}),
]

boxes = {1: lambda rng, s: [[k % 2, 0, 0, 3, 3] for k in range(s[0])]}
VISION = [
    case(op.vision.roi_align(var(2, 6, 4, 4), var(3, 5), (2, 2), 1.0, 2), boxes, 1e-5),
    case(op.vision.roi_align(var(2, 5, 4, 4), var(4, 5), (1, 3), 0.5, 2), boxes, 1e-5),
    case(op.vision.roi_pool(var(2, 6, 4, 4), var(3, 5), (2, 2), 1.0), boxes, 1e-5),
    case(op.vision.roi_pool(var(2, 5, 4, 4), var(4, 5), (1, 3), 0.5), boxes, 1e-5),
    *(case(op.vision.get_valid_counts(var(b, 4, 6), 0.0, 0, 1)) for b in (2, 6)),
    *(
        case(op.vision.multibox_transform_loc(var(b, 3, 4), var(b, 16), var(1, 4, 4)), {}, 1e-5)
        for b in (2, 6)
    ),
    *(
        case(
            op.vision.non_max_suppression(
                var(b, 4, 6), _index(b, dtype="int32"), _index(b, 4, dtype="int32"), **more
            ),
            {
                0: lambda rng, s: rng.random(s),
                1: lambda rng, s: rng.integers(1, 5, s),
                2: lambda rng, s: [[0, 1, 2, 3]] * s[0],
            },
        )
        for b in (2, 6)
        for more in ({"return_indices": False}, {})
    ),
    case(
        op.vision.all_class_non_max_suppression(
            var(2, 4, 4),
            var(2, 3, 4),
            relax.const(2, "int64"),
            relax.const(0.5, "float32"),
            relax.const(0.1, "float32"),
        ),
        {0: unit, 1: above_one},
    ),
]

CASES = [*READS, *WRITES, *QUANTIZED, *VISION]
