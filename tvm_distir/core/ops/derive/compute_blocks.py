# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reads a PrimFunc into blocks: iteration variables, stores, and how they combine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from tvm_distir.core.ops.dims import nominal, plain
from tvm_distir.support import Analyzer, node_kind

_SPATIAL, _REDUCED = 0, 2
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "Mod", "Min", "Max")


class NotUnderstood(Exception):
    """Error for a PrimFunc that the derivation does not model, such as internal control flow."""


@dataclass
class Store:
    """A store ``buffer[indices] = value`` with its conditions and the variables bound before."""

    buffer: ir.Expr
    indices: list[ir.Expr]
    value: ir.Expr
    conditions: list[Any]
    bound: list[tuple[Any, Any]]

    def read(self) -> list[ir.Expr]:
        """Return all expressions that the store evaluates besides its indices."""
        return [self.value, *self.conditions, *(value for _, value in self.bound)]


@dataclass
class Block:
    """A computation block of a PrimFunc.

    Attributes
    ----------
    extents : list of (Var, extent)
        Iteration variables, in order; those of extent 1 are folded away.
    reduced : list of bool
        Parallel to it.
    stores : list of Store
        The stores of the block, their indices and values simplified.
    combiner : str
        The combiner of its reduced variables ("" when they combine in an unknown way).
    analyzer : Analyzer
        Knows the variables' ranges.
    """

    extents: list[tuple[Any, Any]]
    reduced: list[bool]
    stores: list[Store]
    combiner: str
    analyzer: Any
    term: Any = field(default=None)  # what is combined, for a known combiner


def kind_of(node: Any) -> str:
    """Return the class name of an IR node."""
    return node_kind(node)


def children(e: ir.Expr) -> list[ir.Expr]:
    """Return the sub-expressions of an expression."""
    kind = kind_of(e)
    if kind in ("Var", "IntImm", "FloatImm", "StringImm"):
        return []
    if kind == "TensorLoad":
        return list(e.indices)
    if kind == "Call":
        return [a for a in e.args if isinstance(a, ir.Expr)]
    if kind == "Select":
        return [e.condition, e.true_value, e.false_value]
    if kind == "Cast":
        return [e.value]
    if kind == "Let":
        return [e.value, e.body]
    if hasattr(e, "a"):
        return [e.a, e.b] if hasattr(e, "b") else [e.a]
    raise NotUnderstood(f"a {kind} expression")


def loads(e: ir.Expr) -> Iterator[Any]:
    """Yield all loads in an expression, also those inside indices."""
    if kind_of(e) == "TensorLoad":
        yield e
    for child in children(e):
        yield from loads(child)


def operations(e: ir.Expr) -> int:
    """Count the arithmetic operations of a value; operations of indices are not counted."""
    kind = kind_of(e)
    if kind == "TensorLoad":
        return 0
    counted = kind in _ARITHMETIC or (kind == "Call" and "if_then_else" not in str(e.op.name))
    return int(counted) + sum(operations(child) for child in children(e))


def buffer_shape(buffer: ir.Expr) -> list[int | ir.Expr]:
    """Return the extents of a buffer, as ints where they are static."""
    return [plain(n) for n in buffer.ty.shape]


def _stores(
    stmt: tirx.Stmt, conditions: list[Any], bound: list[tuple[Any, Any]]
) -> Iterator[Store]:
    kind = kind_of(stmt)
    if kind == "BufferStore":
        value, inner = stmt.value, list(bound)
        while kind_of(value) == "Let":
            inner.append((value.var, value.value))
            value = value.body
        yield Store(stmt.buffer, list(stmt.indices), value, conditions, inner)
    elif kind == "Bind":
        bound.append((stmt.var, stmt.value))
    elif kind == "SeqStmt":
        for part in stmt.seq:
            yield from _stores(part, conditions, bound)
    elif kind == "IfThenElse":
        inner = [*conditions, stmt.condition]
        yield from _stores(stmt.then_case, inner, list(bound))
        if stmt.else_case is not None:
            yield from _stores(stmt.else_case, inner, list(bound))
    else:
        raise NotUnderstood(f"a {kind} statement inside a block")


def _names(e: ir.Expr, variable: relax.Var) -> bool:
    if kind_of(e) == "Var":
        return bool(e.same_as(variable))
    return any(_names(child, variable) for child in children(e))


def _check_indices(store: Store) -> None:
    """Raise :class:`NotUnderstood` for bound values inside indices, which are not followed."""
    indices = [*store.indices, *(i for e in store.read() for x in loads(e) for i in x.indices)]
    for variable, _ in store.bound:
        if any(_names(e, variable) for e in indices):
            raise NotUnderstood("an index by a bound value")


_COMBINERS = {"Add": "sum", "Mul": "prod", "Max": "max", "Min": "min"}


def _is_neutral(value: ir.Expr, combiner: str) -> bool:
    number = plain(value)
    if not isinstance(number, int | float):
        return False
    if combiner in ("sum", "prod"):
        return number == (0 if combiner == "sum" else 1)
    bound = tirx.min_value if combiner == "max" else tirx.max_value
    return math.isinf(number) or number == plain(bound(str(value.ty.dtype)))


def _combiner(block: tirx.Stmt, stores: list[Store]) -> tuple[str, Any]:
    """Return combiner and combined term of a reducing block; ("", None) when unknown."""
    if len(stores) != 1 or stores[0].conditions or stores[0].bound or block.init is None:
        return "", None
    store = stores[0]
    name = _COMBINERS.get(kind_of(store.value))
    starts = list(_stores(block.init, [], []))
    if name is None or len(starts) != 1 or not _is_neutral(starts[0].value, name):
        return "", None

    def itself(e: ir.Expr) -> bool:
        return (
            kind_of(e) == "TensorLoad"
            and e.source.same_as(store.buffer)
            and len(e.indices) == len(store.indices)
            and all(tvm_ffi.structural_equal(x, y) for x, y in zip(e.indices, store.indices))
        )

    for accumulator, term in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        if itself(accumulator) and not any(x.source.same_as(store.buffer) for x in loads(term)):
            return name, term
    return "", None


def _read(block: tirx.Stmt) -> Block:
    if block.match_buffers:
        raise NotUnderstood("a buffer matched inside a block")
    analyzer = Analyzer()
    extents, reduced = [], []
    for iteration in block.iter_vars:
        if int(iteration.iter_type) not in (_SPATIAL, _REDUCED) or plain(iteration.dom.min) != 0:
            raise NotUnderstood(f"an iteration variable of kind {int(iteration.iter_type)}")
        analyzer.bind(iteration.var, iteration.dom)
        if plain(iteration.dom.extent) != 1:
            extents.append((iteration.var, plain(iteration.dom.extent)))
            reduced.append(int(iteration.iter_type) == _REDUCED)
    stores = list(_stores(block.body, [], []))
    name, term = _combiner(block, stores) if any(reduced) else ("", None)
    for store in stores:
        _check_indices(store)
        store.indices = [analyzer.simplify(e) for e in store.indices]
    return Block(extents, reduced, stores, name, analyzer, term)


def blocks_of(stmt: tirx.Stmt) -> Iterator[Block]:
    """Return the blocks of a PrimFunc's body in program order (NotUnderstood for anything else)."""
    kind = kind_of(stmt)
    if kind == "SBlockRealize":
        if len(stmt.block.iter_vars):
            if plain(stmt.predicate) not in (True, 1):
                raise NotUnderstood("a block with a predicate")
            yield _read(stmt.block)
        else:
            yield from blocks_of(stmt.block.body)
    elif kind == "SeqStmt":
        for part in stmt.seq:
            yield from blocks_of(part)
    elif kind == "For":
        yield from blocks_of(stmt.body)
    elif kind == "BufferStore":
        yield Block([], [], list(_stores(stmt, [], [])), "", Analyzer())
    else:
        raise NotUnderstood(f"a {kind} statement")


def count_flops(stmt: tirx.Stmt, times: int = 1) -> int:
    """Count the arithmetic operations of a body: those of each store times its loop extents."""
    kind = kind_of(stmt)
    if kind in ("BufferStore", "Bind"):
        return times * operations(stmt.value)
    if kind == "SeqStmt":
        return sum(count_flops(part, times) for part in stmt.seq)
    if kind == "For":
        return count_flops(stmt.body, times * nominal(plain(stmt.extent)))
    if kind == "SBlockRealize":
        return count_flops(stmt.block.body, times)
    if kind == "IfThenElse":
        other = 0 if stmt.else_case is None else count_flops(stmt.else_case, times)
        return max(count_flops(stmt.then_case, times), other)
    return count_flops(stmt.body, times) if hasattr(stmt, "body") else 0
