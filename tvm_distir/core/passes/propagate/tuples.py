# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Walk and rebuild nested tuples of expressions and of types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.types import carries_value


def tuple_items(expr: ir.Expr) -> list[ir.Expr]:
    """Return the fields of an expression of a tuple type."""
    if type(expr) is relax.Tuple:
        return list(expr.fields[:])
    return [relax.TupleGetItem(expr, i) for i in range(len(expr.ty.fields))]


def rebuilt(ty: ir.Type, leaves: Iterator[Any]) -> ir.Type:
    """Return a type of the same nesting with new leaves; None keeps the old leaf."""
    if type(ty) is relax.TupleType:
        return relax.TupleType([rebuilt(f, leaves) for f in ty.fields[:]])
    if not carries_value(ty):
        return ty
    new = next(leaves, None)
    return ty if new is None else new


def walk_fields(
    expr: ir.Expr, ty: ir.Type, leaves: Iterator[int], visit: Callable[[int, Any], None]
) -> None:
    """Visit (leaf number, expression of that field) over a nested tuple type."""
    if type(ty) is not relax.TupleType:
        if carries_value(ty):
            visit(next(leaves), expr)
        return
    for i, field in enumerate(ty.fields[:]):
        walk_fields(relax.TupleGetItem(expr, i), field, leaves, visit)
