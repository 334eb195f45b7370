# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write elementwise ops, and tensors created from numbers."""

from __future__ import annotations

import math
from typing import Any

from tvm_distir.models.common import hlo_names
from tvm_distir.models.common.hlo_names import COMPARISONS

from .body_writer import Ssa
from .step import ExportStep, Write
from .text import is_float

UNARY = {
    **hlo_names.UNARY,
    "tan": "tan",
    "logical_not": "not",
    "bitwise_not": "not",
    **{name: f"chlo.{name}" for name in hlo_names.CHLO},
}
BINARY = {
    **{name: name for name in hlo_names.BINARY},
    "mod": "remainder",
    "atan2": "atan2",
    "left_shift": "shift_left",
    **{f"{kind}_{n}": n for kind in ("logical", "bitwise") for n in ("and", "or", "xor")},
}


def _unary(name: str) -> Write:
    return lambda step: step.body.unary(name, step[0])


def _binary(name: str) -> Write:
    return lambda step: step.body.binary(name, step[0], step[1])


def _compare(direction: str) -> Write:
    return lambda step: step.body.compare(direction, step[0], step[1])


def _where(step: ExportStep) -> Ssa:
    return step.body.select(step[0], step[1], step[2])


def _cast(step: ExportStep) -> Ssa:
    return step.body.cast(step[0], step.dtype)


def _clip(step: ExportStep) -> Ssa:
    x, body = step[0], step.body
    low, high = (body.constant(step[i], x.dtype) for i in (1, 2))
    return body.op("clamp", [low, x, high], x.shape, x.dtype)


def _floor_divide(step: ExportStep) -> Ssa:
    body, (a, b) = step.body, step.body.together([step[0], step[1]])
    ratio = body.binary("divide", a, b)
    if is_float(ratio.dtype):
        return body.unary("floor", ratio)
    return body.select(_is_below(step, a, b), body.binary("subtract", ratio, 1), ratio)


def _is_below(step: ExportStep, a: Ssa, b: Ssa) -> Ssa:
    """Return whether truncation raised a quotient, except for division by zero."""
    body = step.body
    rest = body.binary("remainder", a, b)
    signs = body.compare("LT", rest, 0), body.compare("LT", b, 0)
    inexact = body.binary("and", body.compare("NE", rest, 0), body.compare("NE", b, 0))
    return body.binary("and", inexact, body.compare("NE", *signs))


def _floor_mod(step: ExportStep) -> Ssa:
    body, (a, b) = step.body, step.body.together([step[0], step[1]])
    rest = body.binary("remainder", a, b)
    return body.select(_is_below(step, a, b), body.binary("add", rest, b), rest)


def _trunc(step: ExportStep) -> Ssa:
    body, x = step.body, step[0]
    size = body.unary("floor", body.unary("abs", x))
    return body.binary("multiply", body.unary("sign", x), size)


def _gelu(step: ExportStep) -> Ssa:
    body, x = step.body, step[0]
    inner = body.unary("chlo.erf", body.binary("multiply", x, math.sqrt(0.5)))
    return _half_and(step, inner)


def _half_and(step: ExportStep, inner: Ssa) -> Ssa:
    body = step.body
    half = body.binary("multiply", step[0], 0.5)
    return body.binary("multiply", half, body.binary("add", inner, 1))


def _gelu_tanh(step: ExportStep) -> Ssa:
    body, x = step.body, step[0]
    cube = body.binary("multiply", body.binary("multiply", x, x), x)
    inner = body.binary("add", x, body.binary("multiply", cube, 0.044715))
    inner = body.unary("tanh", body.binary("multiply", inner, math.sqrt(2 / math.pi)))
    return _half_and(step, inner)


def _leaky(step: ExportStep) -> Ssa:
    body, x = step.body, step[0]
    below = body.binary("multiply", x, float(step.attrs.alpha))
    return body.select(body.compare("GT", x, 0), x, below)


def _softplus(step: ExportStep) -> Ssa:
    body, x = step.body, step[0]
    beta = float(step.attrs.beta)
    scaled = body.binary("multiply", x, beta)
    smooth = body.unary("log_plus_one", body.unary("exponential", scaled))
    smooth = body.binary("divide", smooth, beta)
    return body.select(body.compare("GT", scaled, float(step.attrs.threshold)), x, smooth)


def _made(value: float) -> Write:
    def write(step: ExportStep) -> Ssa:
        return step.body.broadcast(step.body.constant(value, step.dtype), step.shape)

    return write


def _right_shift(step: ExportStep) -> Ssa:
    """Write a shift that keeps the sign, which unsigned numbers have none of."""
    kind = "logical" if step.dtype.startswith("uint") else "arithmetic"
    return step.body.binary(f"shift_right_{kind}", step[0], step[1])


def _full(step: ExportStep) -> Ssa:
    """Write a filled tensor, of a shape or like another tensor."""
    value: Any = step[1]
    if not isinstance(value, Ssa):
        value = step.body.constant(value, step.dtype)
    return step.body.broadcast(step.body.cast(value, step.dtype), step.shape)


def _arange(step: ExportStep) -> Ssa:
    body, begin, stride = step.body, step[0], step[2]
    line = body.iota(step.shape, 0, step.dtype)
    line = line if stride == 1 else body.binary("multiply", line, stride)
    return line if begin == 0 else body.binary("add", line, begin)


WRITERS: dict[str, Write] = {
    **{name: _unary(other) for name, other in UNARY.items()},
    **{name: _binary(other) for name, other in BINARY.items()},
    **{name: _compare(direction) for name, direction in COMPARISONS.items()},
    "right_shift": _right_shift,
    "isfinite": lambda step: step.body.unary("is_finite", step[0], "bool"),
    "isnan": lambda step: step.body.compare("NE", step[0], step[0]),
    "isinf": lambda step: step.body.compare("EQ", step.body.unary("abs", step[0]), math.inf),
    "square": lambda step: step.body.binary("multiply", step[0], step[0]),
    "trunc": _trunc,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "where": _where,
    "astype": _cast,
    "wrap_param": _cast,
    "clip": _clip,
    "nn.relu": lambda step: step.body.binary("maximum", step[0], 0),
    "nn.relu6": lambda step: step.body.binary(
        "minimum", step.body.binary("maximum", step[0], 0), 6
    ),
    "nn.silu": lambda step: step.body.binary(
        "multiply", step[0], step.body.unary("logistic", step[0])
    ),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.leakyrelu": _leaky,
    "nn.softplus": _softplus,
    "zeros": _made(0),
    "zeros_like": _made(0),
    "ones": _made(1),
    "ones_like": _made(1),
    "full": _full,
    "full_like": _full,
    "arange": _arange,
}
