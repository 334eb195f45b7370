# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines integer division by a number that is read from memory for every pair of operands.

A division by zero, or of the least number by -1, raises a signal that ends the process. Values
decide whether that happens, also those in the padding of an uneven shard, so kernels choose another
divisor where it would:

Before::

    c[i] = a[i] // b[i]

After::

    c[i] = Select(b[i] == 0, -1, a[i] // Select(b[i] == 0 or b[i] == -1 and a[i] < -MAX, 1, b[i]))

The results are those of StableHLO on XLA: all bits of a quotient by zero are set, the remainder is
the dividend, and the least number over -1 is itself.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvm_distir.support import TensorLoad

from .sharing import share

QUOTIENTS = (tirx.Div, tirx.FloorDiv)
DIVISIONS = (*QUOTIENTS, tirx.Mod, tirx.FloorMod)
"""Nodes that :func:`define_division` takes."""


def is_integer_division(node: ir.Expr) -> bool:
    """Return whether a node of :data:`DIVISIONS` divides integers."""
    return str(node.ty.dtype).startswith(("int", "uint"))


def define_division(division: ir.Expr) -> ir.Expr:
    """Give an integer division a result for every pair of operands."""
    dtype = str(division.ty.dtype)

    def write(a: ir.Expr, b: ir.Expr) -> ir.Expr:
        zero = unsafe = tirx.EQ(b, tirx.const(0, dtype))
        if dtype.startswith("int"):
            # Not `a == MIN`: TVM makes it `a - MIN == 0`, which LLVM takes to be false.
            is_least = tirx.LT(a, tirx.const(1 - (1 << int(dtype[3:]) - 1), dtype))
            unsafe = tirx.Or(zero, tirx.And(tirx.EQ(b, tirx.const(-1, dtype)), is_least))
        result = type(division)(a, tirx.Select(unsafe, tirx.const(1, dtype), b))
        by_zero = ~tirx.const(0, dtype) if isinstance(division, QUOTIENTS) else a
        return tirx.Select(zero, by_zero, result)

    return share((division.a, division.b), write)


def divisor_parameters(fn: tirx.PrimFunc) -> tuple[int, ...]:
    """Return the positions of parameters from which an integer division reads its divisor."""
    sources: list[ir.Var] = []

    def visit(division: ir.Expr) -> None:
        if is_integer_division(division):
            loads = (TensorLoad, lambda load: sources.append(load.source))
            tvm_ffi.structural_walk(division.b, loads)

    tvm_ffi.structural_walk(fn.body, (DIVISIONS, visit))
    return tuple(
        position
        for position, param in enumerate(fn.params)
        if any(param.same_as(source) for source in sources)
    )
