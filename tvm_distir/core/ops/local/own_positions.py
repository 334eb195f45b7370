# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Maps global row indices to the rows that a device has."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from .call import LocalCall


def as_int64(cx: LocalCall, positions: ir.Expr) -> ir.Expr:
    """Cast indices to int64."""
    if str(positions.ty.dtype) == "int64":
        return positions
    return cx.emit(relax.op.astype(positions, "int64"), "places")


def own_positions(cx: LocalCall, positions: ir.Expr, number: int, dim: int) -> tuple[Any, Any]:
    """Return which indices name rows of this device, and their local positions.

    Parameters
    ----------
    cx : LocalCall
    positions : variable
        Indices into all rows.
    number, dim : int
        The operand with the rows, and its dim of them, which is sharded.

    Returns
    -------
    here : variable
        Bool, like the indices.
    near : variable
        int64; for rows of other devices some row of this device.
    """
    shard = cx.ins[number].shard
    rows = shard.local[dim]
    end = cx.held(number, dim) if dim in shard.inner_dims else relax.const(rows, "int64")
    offset = cx.emit(relax.op.subtract(as_int64(cx, positions), cx.start(number, dim)), "own")
    above = cx.emit(relax.op.greater_equal(offset, relax.const(0, "int64")), "above")
    below = cx.emit(relax.op.less(offset, end), "below")
    here = cx.emit(relax.op.logical_and(above, below), "here")
    return here, cx.emit(relax.op.clip(offset, 0, rows - 1), "near")
