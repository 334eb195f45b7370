# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the operands of the op of attention, whose heads are behind positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.relax import Expr, op

from tvm_distir.core.ir import known_shape
from tvm_distir.core.ir.operators import new_name
from tvm_distir.core.rewriting import BlockWriter, op_name, permutation

QUERIES, KEYS, VALUES = "queries", "keys", "values"
"""Names of variables for operands of the op, by which plans and tables refer to them."""
SWAP = [0, 2, 1, 3]
"""The order of dims that puts heads before positions, and back."""
TURNED = [0, 3, 1, 2, 4]
"""The order of dims that puts positions before key heads and the heads that share each."""
_GROUPS_FIRST = [0, 2, 3, 1, 4]
"""The order of dims that undoes it."""


class OperandWriter:
    """Writer of operands.

    Parameters
    ----------
    values : mapping of Var to expression
        The values of the function.
    names : set of str
        Names that are used; new ones are added.
    writer : BlockWriter
        The block to write to.
    """

    def __init__(self, values: Mapping[Any, Any], names: set[str], writer: BlockWriter) -> None:
        self._values, self._names, self._writer = values, names, writer

    def emit(self, value: Any, name: str) -> Any:
        """Bind a value to a variable of a new name, by which plans can refer to it."""
        return self._writer.emit(value, new_name(name, self._names))

    def queries(self, expr: Expr) -> Any:
        """Return queries with positions before heads, whose dims are joined."""
        value: Any = self._values.get(expr)
        if op_name(value) == "permute_dims" and permutation(value) == _GROUPS_FIRST:
            grouped = value.args[0]
            batch, rows, heads, shared, width = grouped.ty.shape
            joined = (batch, rows, heads * shared, width)
            source: Any = self._values.get(grouped)
            if op_name(source) == "reshape" and _equal(source.args[0], joined):
                return source.args[0]
            return self.emit(op.reshape(grouped, joined), QUERIES)
        return self.ordered(self.joined(expr, QUERIES), SWAP, QUERIES)

    def joined(self, expr: Expr, name: str) -> Any:
        """Return an operand of five dims with its two dims of heads joined."""
        batch, *heads, rows, width = expr.ty.shape
        if len(heads) == 1:
            return expr
        joined = (batch, heads[0] * heads[1], rows, width)
        source: Any = self._values.get(expr)
        while op_name(source) in ("reshape", "expand_dims"):
            inner = source.args[0]
            if known_shape(inner.ty) == tuple(int(n) for n in joined[1:]) or _equal(inner, joined):
                return inner
            source = self._values.get(inner)
        return self.emit(op.reshape(expr, joined), name)

    def ordered(self, expr: Expr, order: list[int], name: str) -> Any:
        """Permute a value, together with the permutation that it is."""
        value: Any = self._values.get(expr)
        if op_name(value) == "permute_dims":
            axes = permutation(value)
            expr, order = value.args[0], [axes[i] for i in order]
        if order == [*range(len(order))]:
            return expr
        return self.emit(op.permute_dims(expr, order), name)

    def shared(self, expr: Expr, name: str) -> Any:
        """Return keys or values ``(B, T, H, D)`` without repetitions of heads."""
        value = self._written(expr)
        order = [0, 1, 2, 3]
        if op_name(value) == "permute_dims":
            order, expr = permutation(value), value.args[0]
            value = self._written(expr)
        source = self._unrepeated(value, order[2])
        return self.ordered(expr if source is None else source, order, name)

    def _written(self, expr: Expr) -> Any:
        """Return the value of a variable of the function, or of one that was written for it."""
        value: Any = self._values.get(expr)
        if value is None:
            value = next((b.value for b in self._writer.bindings if b.var.same_as(expr)), None)
        return value

    def _unrepeated(self, value: Any, heads: int) -> Any:
        """Return what is repeated along the dim of heads, each several times in turn."""
        if op_name(value) == "repeat":
            axis = value.attrs.axis
            return value.args[0] if axis is not None and int(axis) % 4 == heads else None
        if op_name(value) != "reshape":
            return None
        spread: Any = self._values.get(value.args[0])
        if op_name(spread) != "broadcast_to":
            return None
        single, wide = (list(known_shape(x.ty) or ()) for x in (spread.args[0], spread))
        if len(single) != len(SWAP) + 1 or len(wide) != len(single):
            return None
        if single.pop(heads + 1) != 1 or single != [*wide[: heads + 1], *wide[heads + 2 :]]:
            return None
        below: Any = self._values.get(spread.args[0])
        views = op_name(below) in ("expand_dims", "reshape")
        return below.args[0] if views and known_shape(below.args[0].ty) == tuple(single) else None


def _equal(expr: Expr, shape: Any) -> bool:
    have = list(expr.ty.shape)
    return len(have) == len(shape) and all(map(equal_sizes, have, shape))


def equal_sizes(a: Any, b: Any) -> bool:
    """Return whether two sizes are the same number or the same symbol."""
    return str(a) == str(b)
