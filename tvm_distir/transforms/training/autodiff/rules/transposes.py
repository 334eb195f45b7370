# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Values that are another one with its dims in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

PERMUTE = ir.Op.get("relax.permute_dims")


def is_transposed(value: Any) -> bool:
    """Whether an expression is a call of ``permute_dims``."""
    return isinstance(value, ir.Call) and bool(PERMUTE.same_as(value.op))


def order_of(call: ir.Call, rank: int) -> list[int]:
    """Which dim of its operand each dim of the result of a ``permute_dims`` is."""
    axes = call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(a) % rank for a in axes]


def transposed_from(builder: relax.BlockBuilder, value: Any, order: Sequence[int]) -> Any:
    """The variable of which a variable is the transposed one in an order of dims, else None."""
    made = builder.lookup_binding(value) if isinstance(value, ir.Var) else None
    if made is None or not is_transposed(made) or not isinstance(made.args[0], ir.Var):
        return None
    return made.args[0] if order_of(made, len(order)) == list(order) else None


def before_transposing(builder: relax.BlockBuilder, target: Any, gradient: Any) -> tuple[Any, Any]:
    """A value and its gradient; of what it was transposed from, where the gradient is too.

    The gradient of a transposed value, transposed back, is that of the value before: one that is
    written as a ``permute_dims`` already is handed on without either.
    """
    if is_transposed(gradient):
        order = order_of(gradient, int(target.ty.ndim))
        back = [order.index(d) for d in range(len(order))]
        source = transposed_from(builder, target, back)
        if source is not None:
            return source, gradient.args[0]
    return target, gradient
