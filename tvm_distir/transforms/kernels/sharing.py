# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write expressions that use an operand several times, and blocks of which parts change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_distir.support import SBlock

_SHORT = 200
"""Most nodes of a repeated operand. TVM's elimination of common subexpressions fails on
some kernels with ``Let``, so it is written only where repetition would cost much more."""


def _is_repeatable(value: ir.Expr) -> bool:
    """Return whether an operand may be written several times: it is short, and binds nothing."""
    if str(value.ty.dtype) == "bfloat16":
        return True  # TVM widens bfloat16 values without the variables that are bound to them
    count = 0

    def visit(node: ir.Expr) -> Any:
        nonlocal count
        count += 1
        return tvm_ffi.VisitInterrupt(True) if count > _SHORT or type(node) is tirx.Let else None

    return tvm_ffi.structural_walk(value, [(ir.Expr, visit)]) is None


def share(operands: Sequence[ir.Expr], write: Callable[..., ir.Expr]) -> ir.Expr:
    """Write an expression, with a ``Let`` for each operand that is long.

    An operand that is written several times at every level of nested expressions makes the whole
    grow exponentially with their depth, and passes over TIR walk all of it.

    Parameters
    ----------
    operands : sequence of Expr
    write : callable
        Returns the expression for the operands, or for the variables that stand for them.

    Returns
    -------
    Expr
    """
    variables = [None if _is_repeatable(v) else tirx.Var("operand", v.ty.dtype) for v in operands]
    names = [v if var is None else var for v, var in zip(operands, variables, strict=True)]
    result = write(*names)
    for operand, var in zip(operands, variables, strict=True):
        if var is not None:
            result = tirx.Let(var, operand, result)
    return result


_BLOCK_FIELDS = (
    *("iter_vars", "reads", "writes", "name_hint", "body"),
    *("init", "alloc_buffers", "match_buffers", "annotations"),
)


def with_block_fields(block: SBlock, **changed: Any) -> SBlock:
    """Return a block of which some fields are others."""
    return SBlock(**{name: changed.get(name, getattr(block, name)) for name in _BLOCK_FIELDS})
