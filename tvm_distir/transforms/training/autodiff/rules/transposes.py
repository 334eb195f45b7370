# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recognize values that are transpositions of other values."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir
from tvm.relax import BlockBuilder, Expr

from tvm_distir.core.rewriting import permutation

PERMUTE = ir.Op.get("relax.permute_dims")


def is_transposed(value: Expr) -> bool:
    """Return whether an expression is a call of ``permute_dims``."""
    return isinstance(value, ir.Call) and bool(PERMUTE.same_as(value.op))


def transposed_from(builder: BlockBuilder, value: Expr, order: Sequence[int]) -> Expr | None:
    """Return the variable that a variable transposes in a given order of dims, else None."""
    producer = builder.lookup_binding(value) if isinstance(value, ir.Var) else None
    if producer is None or not is_transposed(producer) or not isinstance(producer.args[0], ir.Var):
        return None
    return producer.args[0] if permutation(producer, len(order)) == list(order) else None


def before_transposing(builder: BlockBuilder, target: Expr, gradient: Expr) -> tuple[Expr, Expr]:
    """Return a value and its gradient before a common transposition, if any.

    The gradient of a transposed value, transposed back, is that of the value before: one that is
    written as a ``permute_dims`` already is passed on without either.
    """
    if is_transposed(gradient):
        order = permutation(gradient, int(target.ty.ndim))
        source = transposed_from(builder, target, [order.index(d) for d in range(len(order))])
        if source is not None:
            return source, gradient.args[0]
    return target, gradient
