# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define calls of elementwise ops and of ops that create tensors."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.execution.rule_validation.cases import Case, case, var
from tvm_distir.execution.rule_validation.draws import (
    Draw,
    above_one,
    bits,
    multiples_of_half,
    nonzero,
    positive,
    specials,
    unit,
)

op = relax.op

SHAPES = [(4, 5), (1, 6), (7,), (2, 1, 3)]
PAIRS = [
    ((4, 5), (4, 5)),
    ((4, 5), (5,)),
    ((4, 1, 6), (1, 3, 6)),
    ((7,), ()),
    ((1, 1), (3, 5)),
]


def _named(name: str) -> Any:
    result = op
    for part in name.split("."):
        result = getattr(result, part)
    return result


def _unary(
    names: str, draw: Draw | None = None, tolerance: float = 0.0, dtype: str = "float32"
) -> list[Case]:
    draws = {} if draw is None else {0: draw}
    return [
        case(_named(name)(var(*shape, dtype=dtype)), draws, tolerance)
        for name in names.split()
        for shape in SHAPES
    ]


def _binary(
    names: str,
    draws: dict[int, Draw] | None = None,
    tolerance: float = 0.0,
    dtype: str = "float32",
    fills: dict[int, float] | None = None,
) -> list[Case]:
    return [
        case(
            _named(name)(var(*a, dtype=dtype), var(*b, dtype=dtype)),
            draws or {},
            tolerance,
            fills=fills or {},
        )
        for name in names.split()
        for a, b in PAIRS
    ]


UNARY = [
    *_unary("abs negative sign square nn.relu nn.leakyrelu"),
    *_unary("ceil floor round trunc", multiples_of_half),
    *_unary("isnan isinf isfinite", specials),
    *_unary("asinh atan cos cosh erf exp sigmoid sin sinh tan tanh", tolerance=1e-6),
    *_unary("nn.gelu nn.gelu_tanh nn.silu nn.selu nn.softplus", tolerance=1e-6),
    *_unary("acos asin atanh", unit, 1e-6),
    *_unary("acosh", above_one, 1e-6),
    *_unary("log", positive, 1e-6),
    *_unary("sqrt rsqrt", positive, 1e-6),
    *_unary("bitwise_not abs negative square", dtype="int32"),
    *_unary("logical_not", bits, dtype="bool"),
    *(case(op.clip(var(*s), -1, 1)) for s in SHAPES),
    *(
        case(op.astype(var(*s), to), {0: multiples_of_half})
        for s in SHAPES
        for to in ("int32", "float16")
    ),
    *(case(op.astype(var(*s, dtype="float16"), "float32"), {0: multiples_of_half}) for s in SHAPES),
    case(op.nn.leakyrelu(var(3, 4), 0.5)),
    case(op.nn.softplus(var(3, 4), 2.0, 1.0), {}, 1e-6),
    *(case(op.nn.dropout(var(*s), 0.5)) for s in SHAPES),
    *(
        case(ir.Call(ir.Op.get(f"relax.grad.{mark}"), [var(4, 5)]), numpy=lambda a: a)
        for mark in ("no_grad", "start_checkpoint", "end_checkpoint")
    ),
    *(case(op.memory.ensure_zero_offset(var(*s))) for s in SHAPES),
]

BINARY = [
    *_binary("add subtract multiply maximum minimum"),
    *_binary("add subtract multiply maximum minimum", dtype="int32"),
    *_binary("equal greater greater_equal less less_equal not_equal"),
    *_binary("divide floor_divide mod floor_mod", {1: nonzero}),
    *_binary("divide floor_divide mod floor_mod", {1: nonzero}, 0.0, "int32", {1: 1}),
    *_binary("atan2 log_add_exp", {}, 1e-6),
    *_binary("power", {0: positive}, 1e-6),
    *_binary("bitwise_and bitwise_or bitwise_xor", dtype="int32"),
    *_binary("left_shift right_shift", {0: positive, 1: bits}, 0.0, "int32"),
    *_binary("logical_and logical_or logical_xor", {0: bits, 1: bits}, 0.0, "bool"),
    case(op.add(var(4, 6), var(4, 6, dtype="float32")), {}),
    *(
        case(op.where(var(*c, dtype="bool"), var(*a), var(*b)), {0: bits})
        for c, a, b in (
            ((4, 6), (4, 6), (6,)),
            ((5, 1), (5, 3), (1, 3)),
            ((1,), (4, 5), (4, 5)),
            ((7, 1), (1, 4), ()),
        )
    ),
    *(
        case(op.ewise_fma(*(var(*s) for _ in range(3))), numpy=lambda a, b, c: a * b + c)
        for s in ((4, 5), (1, 6), (7,))
    ),
    case(op.nn.prelu(var(2, 6, 4), var(6))),
    case(op.nn.prelu(var(2, 5, 3), var(5))),
    case(op.nn.prelu(var(4, 3), var(3), axis=-1)),
    case(op.nn.prelu(var(2, 1, 4), var(1))),
]

SIZES = [(4, 6), (5, 3), (1, 7), (2, 3, 4)]
CREATION = [
    *(case(op.full(s, relax.const(2.0, "float32"))) for s in SIZES),
    case(op.full((4, 6), var())),
    *(case(make(s, "float32")) for s in SIZES for make in (op.zeros, op.ones)),
    *(case(make(var(*s))) for s in SIZES for make in (op.zeros_like, op.ones_like)),
    *(case(op.full_like(var(*s), var())) for s in SIZES),
    *(case(op.full_like(var(*s), relax.const(3.0, "float32"))) for s in SIZES),
]

#: Nothing of these may be cut; their rules say why.
POSITIONS = [
    case(op.arange(0, 6, 1, "int64")),
    case(op.eye(4, 6)),
    case(op.eye_like(var(4, 6))),
    case(op.hamming_window(6, True, 0.5, 0.5, "float32")),
    case(op.size(var(4, 6))),
    case(op.shape_to_tensor(relax.ShapeExpr([4, 6]))),
]

CASES = [*UNARY, *BINARY, *CREATION, *POSITIONS]
