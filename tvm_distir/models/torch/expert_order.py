# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find rows that are sorted by expert for grouped products, and need no order here.

A mixture of experts sorts its pairs of token and expert, so that the rows of an expert are
neighbors, and restores the order behind the experts::

    order = sort(ids)                      # values and permutation
    rows = x[order.permutation // k]       # each token once per choice
    y = grouped_mm(f(grouped_mm(rows, w, offs)), v, offs)
    z = y[inverse of order.permutation]

Our grouped product takes the group of each row, ``ids``, and rows in any order. Where everything
between acts on each row separately, the result is that without the sort: ``rows`` is ``x`` with
rows repeated ``k`` times, and ``z`` is ``y``. No device then needs the tokens of others to sort
them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax
from tvm.relax import Expr

from . import arithmetic, elementwise
from .aten_call import AtenCall, axis_of
from .grouped_products import GROUPED_OPERANDS, multiplied
from .table import NOTES, overload_name

_POINTWISE = frozenset(
    (
        *arithmetic.CONVERTERS,
        *elementwise.CONVERTERS,
        "_to_copy.default",
        "to.dtype",
        "clone.default",
    )
)
_ALONG_DIM = {
    "slice.Tensor": "dim", "split.Tensor": "dim", "split_with_sizes.default": "dim",
    "chunk.default": "dim", "unsqueeze.default": "dim", "sum.dim_IntList": "dim",
    "mean.dim": "dim",
}  # fmt: skip
"""Operators that act on each row separately unless the argument names dim 0."""


class _Kind(Enum):
    """Role of a node's value in the sorted region."""

    PAIR = "sorted ids and permutation"
    SORTED = "sorted ids"
    ORDER = "permutation"
    TOKEN = "token of each place"
    COUNTS = "rows per expert, or where they end"
    EMPTY = "place for the inverse"
    INVERSE = "inverse permutation"
    ROWS = "one row per place, in sorted order"


class _NotSeparate(Exception):
    """A node needs the sorted order."""


@dataclass(frozen=True)
class Substitute:
    """Replacement of the value of a node.

    Attributes
    ----------
    write : callable
        Emits the value from the call and the value of ``source``.
    source : Node
        The node whose value is read.
    reads_operands : bool
        Whether the operands of the node are read too.
    """

    write: Callable[[AtenCall, Expr], Expr]
    source: fx.Node
    reads_operands: bool = False

    def of(self, call: AtenCall) -> Any:
        """Emit the value."""
        return self.write(call, call.value(self.source))

    def reads(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes that the replacement of ``node`` reads."""
        return [self.source, *(node.all_input_nodes if self.reads_operands else [])]


def unsorted_rows(graph: fx.Graph) -> Mapping[fx.Node, Substitute]:
    """Return the nodes of a graph that another value replaces, so that nothing is sorted."""
    out: dict[fx.Node, Substitute] = {}
    for node in graph.nodes:
        if node.op == "call_function" and overload_name(node.target) == "sort.default":
            if not _sorts_a_line(node):
                continue
            try:
                out.update(_SortedRegion(node).read())
            except _NotSeparate:
                continue
    return out


def _sorts_a_line(node: fx.Node) -> bool:
    ids = node.args[0]
    return len(node.args) == 1 and not node.kwargs and len(ids.meta["val"].shape) == 1


class _SortedRegion:
    """Reader of all nodes between a sort and the restored order."""

    def __init__(self, sort: fx.Node) -> None:
        self._sort, self._ids = sort, sort.args[0]
        self._kinds: dict[fx.Node, _Kind] = {sort: _Kind.PAIR}
        self._repeats: dict[fx.Node, int] = {}
        self._out: dict[fx.Node, Substitute] = {sort: Substitute(_unsorted, self._ids)}

    def read(self) -> Mapping[fx.Node, Substitute]:
        """Return the substitutes.

        Raises
        ------
        _NotSeparate
            Where a node needs the order, or no grouped product reads the rows.
        """
        for node in self._sort.graph.nodes:
            if any(source in self._kinds for source in node.all_input_nodes):
                self._read(node)
        if not any(overload_name(n.target) in GROUPED_OPERANDS for n in self._out):
            raise _NotSeparate
        return self._out

    def _read(self, node: fx.Node) -> None:
        if node.op != "call_function":
            raise _NotSeparate
        name = overload_name(node.target)
        if name in NOTES:
            return
        kinds = {self._kinds[n] for n in node.all_input_nodes if n in self._kinds}
        if _Kind.PAIR in kinds and node.target is operator.getitem:
            self._kinds[node] = _Kind.ORDER if node.args[1] else _Kind.SORTED
        elif name == "index.Tensor":
            self._read_index(node)
        elif name in GROUPED_OPERANDS:
            self._read_product(node)
        elif _Kind.ROWS in kinds:
            self._read_rows(node, name)
        else:
            self._kinds[node] = self._kind_of_ids(node, name, kinds)

    def _kind_of_ids(self, node: fx.Node, name: str, kinds: set[_Kind]) -> _Kind:
        """Return what is computed of the ids or of the permutation alone."""
        if kinds == {_Kind.SORTED} and name in ("_to_copy.default", "to.dtype"):
            return _Kind.SORTED
        if kinds == {_Kind.SORTED} and name == "histc.default":
            bins, low, high = node.args[1:4]
            if (low, high) == (0, bins - 1):
                return _Kind.COUNTS
        if kinds == {_Kind.COUNTS} and name in ("cumsum.default", "_to_copy.default", "to.dtype"):
            return _Kind.COUNTS
        if kinds == {_Kind.ORDER} and name == "floor_divide.default":
            if isinstance(node.args[1], int):
                self._repeats[node] = node.args[1]
                return _Kind.TOKEN
        if kinds == {_Kind.ORDER} and name == "empty_like.default":
            return _Kind.EMPTY
        if name == "index_put.default" and kinds == {_Kind.EMPTY, _Kind.ORDER}:
            empty, indices, values = node.args[:3]
            index_kinds = [self._kinds.get(n) for n in indices]
            if self._kinds.get(empty) is _Kind.EMPTY and index_kinds == [_Kind.ORDER]:
                if _counts_up(values) and len(node.args) == 3:
                    return _Kind.INVERSE
        raise _NotSeparate

    def _read_index(self, node: fx.Node) -> None:
        table, indices = node.args[0], list(node.args[1])
        index = indices[0]
        kind = self._kinds.get(index) if isinstance(index, fx.Node) else None
        if len(indices) != 1 or kind is None:
            raise _NotSeparate
        of_table = self._kinds.get(table)
        if kind is _Kind.INVERSE and of_table is _Kind.ROWS:
            self._out[node] = Substitute(_same, table)
            return
        if of_table is not None:
            raise _NotSeparate
        if kind is _Kind.ORDER:
            self._out[node] = Substitute(_same, table)
        elif kind is _Kind.TOKEN:
            self._out[node] = Substitute(_repeat(self._repeats[index]), table)
        elif kind is not _Kind.SORTED:  # a row of a table by expert reads the unsorted ids
            raise _NotSeparate
        self._kinds[node] = _Kind.ROWS

    def _read_product(self, node: fx.Node) -> None:
        values = [*node.args[:3], *node.kwargs.values()]
        kinds = [self._kinds.get(value) for value in values[:3]]
        if len(values) < 3 or kinds != [_Kind.ROWS, None, _Kind.COUNTS]:
            raise _NotSeparate
        if any(value is not None for value in (*values[3:], *node.args[3:])):
            raise _NotSeparate
        operands = GROUPED_OPERANDS[overload_name(node.target)]
        self._out[node] = Substitute(
            lambda call, ids: multiplied(call, operands, ids), self._ids, reads_operands=True
        )
        self._kinds[node] = _Kind.ROWS

    def _read_rows(self, node: fx.Node, name: str) -> None:
        rows = [n for n in node.all_input_nodes if n in self._kinds]
        if any(self._kinds[n] is not _Kind.ROWS for n in rows):
            raise _NotSeparate
        if node.target is operator.getitem:
            self._kinds[node] = _Kind.ROWS
            return
        ranks = {len(_shape(n)) for n in rows}
        if name in _ALONG_DIM:
            _check_dims(node, _ALONG_DIM[name], min(ranks))
        elif name in _POINTWISE:
            _check_pointwise(node, rows, ranks)
        else:
            raise _NotSeparate
        self._kinds[node] = _Kind.ROWS


def _shape(node: fx.Node) -> torch.Size:
    value = node.meta["val"]
    return (value[0] if isinstance(value, (list, tuple)) else value).shape


def _check_pointwise(node: fx.Node, rows: list[fx.Node], ranks: set[int]) -> None:
    """Reject an operator whose operands are not tied to the same rows."""
    rank = len(_shape(node))
    if ranks != {rank}:
        raise _NotSeparate
    for other in node.all_input_nodes:
        if other not in rows and hasattr(other.meta.get("val"), "shape"):
            shape = _shape(other)
            if len(shape) == rank and shape[0] != 1:
                raise _NotSeparate


def _check_dims(node: fx.Node, name: str, rank: int) -> None:
    """Reject an operator along the dim of rows."""
    index = [spec.name for spec in node.target._schema.arguments].index(name)
    dim = node.args[index] if index < len(node.args) else node.kwargs.get(name, 0)
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    operand_rank = rank + (overload_name(node.target) == "unsqueeze.default")
    if not dims or any(not isinstance(d, int) or axis_of(d, operand_rank) == 0 for d in dims):
        raise _NotSeparate


def _counts_up(value: Any) -> bool:
    is_node = isinstance(value, fx.Node) and value.op == "call_function"
    return is_node and overload_name(value.target) == "arange.default"


def _unsorted(call: AtenCall, ids: Expr) -> list[Expr]:
    """Return ids and permutation of rows that stay in place."""
    return [ids, relax.const(np.arange(int(ids.ty.shape[0]), dtype="int64"), "int64")]


def _same(_: AtenCall, value: Expr) -> Expr:
    return value


def _repeat(count: int) -> Callable[[AtenCall, Expr], Expr]:
    def write(call: AtenCall, value: Expr) -> Expr:
        return value if count == 1 else call.emit(relax.op.repeat(value, count, 0))

    return write
