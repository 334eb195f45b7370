# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write calls on values whose leading dims the values that they had merge into one, the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from tvm import ir, relax

from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ir.types import static_shape
from tvm_distir.core.ops.dims import Shape, product, same
from tvm_distir.core.ops.families.elementwise import BINARY, ODD, QUOTIENTS, UNARY
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.rewriting.calls import called_name
from tvm_distir.core.rewriting.writer import BlockWriter

REDUCTIONS = frozenset(relax_names("max mean min prod sum"))
_INDEXED = frozenset(relax_names("gather_elements scatter_elements"))
_OTHERS = (
    "add astype divide multiply negative subtract where "
    "argmax argmin expand_dims nn.log_softmax nn.softmax one_hot squeeze"
)
_BY_ROW = REDUCTIONS.union(
    _INDEXED, *(relax_names(words) for words in (UNARY, ODD, BINARY, QUOTIENTS, _OTHERS))
)
"""Ops that treat each row by itself where an axis that they have is another than the first."""
_LOSS, _GRADIENT = "relax.nn.nll_loss", "relax.grad.nll_loss_backward"
_FILLED = frozenset(relax_names("full zeros ones"))


class Rows(NamedTuple):
    """A value, and the leading dims of it that another value merges into one."""

    value: ir.Expr
    lead: Shape


class RowCalls:
    """A writer of calls on rows.

    Parameters
    ----------
    writer : BlockWriter

    Attributes
    ----------
    rows, transposed : dict
        The rows of variables whose first, or whose last dim merges them.
    values : dict
        The values of variables.
    """

    def __init__(self, writer: BlockWriter) -> None:
        self._emit = writer.emit
        self.rows: dict[ir.Expr, Rows] = {}
        self.transposed: dict[ir.Expr, Rows] = {}
        self.values: dict[ir.Expr, ir.Expr] = {}

    def of(self, var: relax.Var, call: ir.Call) -> ir.Expr | None:
        """Return a call on rows; None where its op, an operand or its axis does not allow it."""
        name, attrs, args = called_name(call), call.attrs, call.args
        if name in (_LOSS, _GRADIENT):
            return self._loss(call, int(name == _GRADIENT))
        if name == "relax.matmul":
            return self._product(call, *args)
        read = [arg for arg in args if arg in self.rows]
        first = self.rows[read[0]] if read else None
        if first is None or any(not self._alike(arg, read[0]) for arg in read):
            return None
        rank, count = read[0].ty.ndim, len(first.lead)
        if name == "relax.permute_dims":
            axes = [int(axis) for axis in attrs.axes or range(rank - 1, -1, -1)]
            if axes == [1, 0]:
                self.transposed[var] = first
            if axes[0]:
                return None
            axes = [*range(count), *(axis + count - 1 for axis in axes[1:])]
            return relax.op.permute_dims(first.value, axes)
        if name == "relax.take":
            fits = args[0] not in self.rows and rank == 1 and attrs.axis == 0
            return ir.Call(call.op, [args[0], first.value], attrs) if fits else None
        if name == "relax.broadcast_to":
            shape = args[1].values
            fits = len(shape) == rank
            return relax.op.broadcast_to(first.value, [*first.lead, *shape[1:]]) if fits else None
        if name not in _BY_ROW:
            return None
        operands = [self._operand(arg, first.lead, rank, name in _INDEXED) for arg in args]
        return None if None in operands else _shifted(call, name, operands, rank, count - 1)

    def lead(self, call: ir.Call) -> Shape:
        """Return the dims that the first operand of merged rows merges."""
        return next(self.rows[arg].lead for arg in call.args if arg in self.rows)

    def _alike(self, arg: ir.Expr, other: ir.Expr) -> bool:
        same_lead = same_dims(self.rows[arg].lead, self.rows[other].lead)
        return same_lead and arg.ty.ndim == other.ty.ndim

    def _operand(self, arg: ir.Expr, lead: Shape, rank: int, is_full: bool) -> ir.Expr | None:
        """Return an operand beside rows; None where it would have to be moved."""
        if arg in self.rows:
            return self.rows[arg].value
        if not hasattr(arg.ty, "ndim"):
            return arg
        shape = static_shape(arg.ty)
        if shape is None or len(shape) > rank:
            return None
        if _is_repeated(arg, rank):
            return None if is_full else arg
        if not same(shape[0], product(lead)):
            return None
        dims, origin = [*lead, *shape[1:]], cast("Any", self.values.get(arg))
        name = called_name(origin) if isinstance(origin, ir.Call) else ""
        if name in _FILLED:
            value = ir.Call(origin.op, [relax.ShapeExpr(dims), *origin.args[1:]], origin.attrs)
        elif name == "relax.broadcast_to" and _is_repeated(origin.args[0], rank):
            value = relax.op.broadcast_to(origin.args[0], dims)
        elif all(same(n, 1) for n in shape[1:]):
            value = relax.op.reshape(arg, dims)
        else:
            return None
        return self._emit(value, "operand_rows")

    def _product(self, call: ir.Call, x: ir.Expr, y: ir.Expr) -> ir.Expr | None:
        """Return a product of rows and a matrix, or a sum of products over all rows."""
        if x in self.rows and y not in self.rows and (x.ty.ndim, y.ty.ndim) == (2, 2):
            return ir.Call(call.op, [self.rows[x].value, y], call.attrs)
        left, right = self.transposed.get(x), self.rows.get(y)
        if left is None or right is None or y.ty.ndim != 2 or call.ty.dtype != y.ty.dtype:
            return None
        if not same_dims(left.lead, right.lead):
            return None
        lead = "abcdefgh"[: len(left.lead)]
        return relax.op.einsum((left.value, right.value), f"{lead}x,{lead}y->xy")

    def _loss(self, call: ir.Call, first: int) -> ir.Expr | None:
        """Return a loss, or its gradient, whose class dim TVM has second."""
        of_rows = [arg for arg in call.args[: first + 2] if arg.ty.ndim]
        if not self.rows.keys() >= {*of_rows}:
            return None
        args = [self.rows[arg].value if arg in self.rows else arg for arg in call.args]
        count = len(self.rows[of_rows[-1]].lead)
        order = [0, count, *range(1, count)]
        args[first] = self._emit(relax.op.permute_dims(args[first], order), "classes_first")
        new = ir.Call(call.op, args, call.attrs)
        if not first:
            return new
        gradient = self._emit(new, "classes_first_grad")
        return relax.op.permute_dims(gradient, [0, *range(2, count + 1), 1])


def _is_repeated(value: ir.Expr, rank: int) -> bool:
    """Return whether a value beside others of a rank is the same for all their rows."""
    shape = static_shape(value.ty)
    return shape is not None and (len(shape) < rank or same(shape[0], 1))


def same_dims(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two lists of dims are provably equal."""
    return len(a) == len(b) and all(map(same, a, b))


def _shifted(
    call: ir.Call, name: str, args: Sequence[ir.Expr], rank: int, more: int
) -> ir.Call | None:
    """Return a call on operands that have ``more`` leading dims than its own, of a rank."""
    attrs: Any = call.attrs
    axis = getattr(attrs, "axis", None)
    if axis is None:
        is_by_axis = hasattr(attrs, "axis") and name not in REDUCTIONS
        return None if is_by_axis else ir.Call(call.op, args, attrs)
    positions = [axis] if isinstance(axis, int) else [int(a) for a in axis]
    rank += {"relax.expand_dims": len(positions), "relax.one_hot": 1}.get(name, 0)
    axes = [a % rank for a in positions]
    shifted = [a + more for a in axes if a]
    if 0 in axes:
        if name not in REDUCTIONS:
            return None
        shifted = [*range(more + 1), *shifted]
    new = shifted[0] if isinstance(axis, int) else shifted
    return ir.Call(call.op, args, changed(attrs, axis=new))


def merged_rows(before: Shape, after: Shape) -> int:
    """Return how many leading dims a reshape merges into its first, at least two; or 0."""
    counts = range(2, len(before) + 1) if after else ()
    return next((n for n in counts if same(product(before[:n]), after[0])), 0)


def transposed_source(call: ir.Call, values: Mapping[ir.Expr, ir.Expr]) -> Rows | None:
    """Return the rows of which a reshape merges the dims after it moved them to the end."""
    moved, after = values.get(call.args[0]), static_shape(call.ty) or ()
    if not isinstance(moved, ir.Call) or called_name(moved) != "relax.permute_dims":
        return None
    source = moved.args[0]
    rank, lead = source.ty.ndim, (static_shape(source.ty) or ())[:-1]
    axes = [int(axis) for axis in moved.attrs.axes or ()]
    fits = len(after) == 2 and rank > 2 and axes == [rank - 1, *range(rank - 1)]
    return Rows(source, lead) if fits and same(product(lead), after[1]) else None
