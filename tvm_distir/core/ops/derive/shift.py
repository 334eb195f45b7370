# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes how an index expression moves when an iteration variable moves by a block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tvm_distir.core.ops.dims import plain

from .compute_blocks import children, kind_of

if TYPE_CHECKING:
    from tvm import ir, relax

#: (step, change): shifts of the variable by multiples of step change the value by exactly
#: change per step. None: no such pair is known.
Shift = tuple[int, int] | None


def uses(e: ir.Expr, var: relax.Var) -> bool:
    """Return whether an expression names a variable outside of loads."""
    kind = kind_of(e)
    if kind == "Var":
        return bool(e.same_as(var))
    if kind == "TensorLoad":
        return False
    return any(uses(child, var) for child in children(e))


def _scaled(shift: tuple[int, int], times: int) -> tuple[int, int]:
    return shift[0] * times, shift[1] * times


def _sum(x: Shift, y: Shift, sign: int) -> Shift:
    if x is None or y is None:
        return None
    step = math.lcm(x[0], y[0])
    return step, x[1] * (step // x[0]) + sign * y[1] * (step // y[0])


def shift_of(e: ir.Expr, var: relax.Var) -> Shift:
    """Return the shift of an expression; loaded values count as moving along with the variable.

    Examples, for a variable v: ``v`` gives (1, 1), ``v * 4 + u`` (1, 4), ``v // 6`` (6, 1),
    ``v % 6`` (6, 0).
    """
    if not uses(e, var):
        return 1, 0
    kind = kind_of(e)
    if kind == "Var":
        return 1, 1
    if kind in ("Add", "Sub"):
        return _sum(shift_of(e.a, var), shift_of(e.b, var), 1 if kind == "Add" else -1)
    if kind == "Cast":
        inner = shift_of(e.value, var)
        exact = inner is not None and (inner[1] == 0 or "int" in str(e.ty.dtype))
        return inner if exact else None
    if kind == "Mul":
        for x, y in ((e.a, plain(e.b)), (e.b, plain(e.a))):
            if isinstance(y, int):
                inner = shift_of(x, var)
                return None if inner is None else (inner[0], inner[1] * y)
        return still(e, var)
    if kind in ("FloorDiv", "FloorMod"):
        inner, divisor = shift_of(e.a, var), plain(e.b)
        if inner is None or not isinstance(divisor, int) or divisor <= 0:
            return None
        step, change = _scaled(inner, divisor // math.gcd(inner[1], divisor))
        return (step, change // divisor) if kind == "FloorDiv" else (step, 0)
    return still(e, var)


def still(e: ir.Expr, var: relax.Var) -> Shift:
    """Return (step, 0) when every part of an expression stays the same under shifts by step."""
    step = 1
    for child in children(e):
        inner = shift_of(child, var)
        if inner is None or inner[1] != 0:
            return None
        step = math.lcm(step, inner[0])
    return step, 0
