# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent a function as a sequence of binding numbers, equal for equal bindings."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, relax
from tvm.relax import Binding, BindingBlock, Expr, Var

from tvm_distir.core.ir.attributes import OPEN_AXES_ATTR, STATIONARY_ATTR
from tvm_distir.support import GenericConst, update_type

from .repeats import Ints

NOWHERE = -1
"""Position of what no binding of the sequence defines: parameters and constants."""


class Numbering:
    """Map from objects to consecutive numbers, equal for structurally equal objects."""

    def __init__(self) -> None:
        self.buckets: dict[int, list[tuple[Any, int]]] = {}
        self.keys: dict[Hashable, int] = {}

    def of(self, node: Any) -> int:
        """Return the number of an IR node; a free variable equals only itself."""
        bucket = self.buckets.setdefault(tvm_ffi.structural_hash(node), [])
        for known, number in bucket:
            if known.same_as(node) or tvm_ffi.structural_equal(known, node):
                return number
        number = self.of_key(("node", len(self.keys)))
        bucket.append((node, number))
        return number

    def of_key(self, key: Hashable) -> int:
        """Return the number of a plain Python key."""
        return self.keys.setdefault(key, len(self.keys))


@dataclass
class Sequence:
    """The bindings of a function in order, with an empty place between blocks.

    Two bindings have the same symbol when they are the same up to what their operands are: op,
    attributes, types of operands and result, kind of block, notes on an annotation. Operands
    (*leaves*) are variables and constants, those inside tuples too.

    Attributes
    ----------
    bindings : list
        VarBinding, MatchCast, or None between blocks.
    dataflow : list of bool
        Whether the binding is in a dataflow block.
    symbols : array of int64, (n,)
    leaves : list of tuple
        The operands of each binding; empty for a binding that may not be moved.
    leaf_start : array of int64, (n + 1,)
        The beginning of each binding's leaves in ``producers``.
    producers : array of int64, (leaves,)
        Position of the binding that defines a leaf, NOWHERE for parameters and constants.
    last_use : array of int64, (n,)
        Position of the last binding that reads the variable; n for results, NOWHERE for none.
    position : dict of Var to int
        The position of each variable that the sequence binds.
    """

    bindings: list[Any] = field(default_factory=list)
    dataflow: list[bool] = field(default_factory=list)
    symbols: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    leaves: list[tuple[Expr, ...]] = field(default_factory=list)
    leaf_start: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    producers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    last_use: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    position: dict[Var, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.bindings)

    def wiring(self, start: int, stop: int) -> Ints:
        """Return, per leaf of a range, the offset of its producer in it, or NOWHERE."""
        producers = self.producers[self.leaf_start[start] : self.leaf_start[stop]]
        return np.where(producers >= start, producers - start, NOWHERE)

    def operands(self, start: int, stop: int) -> list[Expr]:
        """Return all leaves of a range, in order."""
        return [leaf for leaves in self.leaves[start:stop] for leaf in leaves]


def sequence_of(fn: relax.Function) -> Sequence:
    """Read a function's bindings, without recursion over them."""
    reader = _Reader(fn)
    for block in fn.body.blocks:
        reader.block(block)
    return reader.finish(fn.body.body)


def rebuilt(value: Expr, leaves: Iterator[Expr]) -> Expr:
    """Return a binding's value with its leaves replaced, in the order of ``Sequence.leaves``."""
    if isinstance(value, ir.Call):
        args = [_rebuilt_operand(arg, leaves) for arg in value.args]
        copy = ir.Call(value.op, args, value.attrs, value.ty_args)
    else:
        copy = _rebuilt_operand(value, leaves)
    if copy.ty is None or not tvm_ffi.structural_equal(copy.ty, value.ty):
        update_type(copy, value.ty)
    return copy


def _rebuilt_operand(expr: Expr, leaves: Iterator[Expr]) -> Expr:
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_rebuilt_operand(item, leaves) for item in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_rebuilt_operand(expr.tuple_value, leaves), expr.index)
    return next(leaves) if _is_leaf(expr) else expr


def _is_leaf(expr: Expr) -> bool:
    """Return whether an expression is a constant or a non-symbolic variable."""
    if isinstance(expr, GenericConst):
        return True
    return isinstance(expr, ir.Var) and not isinstance(expr.ty, ir.PrimType)


class _Fixed(Exception):
    """Signal for a binding that cannot be moved into another function."""


class _Reader:
    """Builder of a Sequence, binding by binding."""

    def __init__(self, fn: relax.Function) -> None:
        self.sequence = Sequence()
        self.numbering = Numbering()
        self.symbols: list[int] = []
        self.starts = [0]
        self.producers: list[int] = []
        self.reads: list[tuple[int, int]] = []
        self.params = set(fn.params)
        attrs = fn.attrs or {}
        self.stationary = {str(name) for name in attrs.get(STATIONARY_ATTR, [])}
        self.open_axes = {
            str(name): tuple(map(int, axes)) for name, axes in attrs.get(OPEN_AXES_ATTR, {}).items()
        }

    def block(self, block: BindingBlock) -> None:
        """Append the bindings of a block and an end marker."""
        dataflow = isinstance(block, relax.DataflowBlock)
        for binding in block.bindings:
            self._append(binding, dataflow)
        self._close(None, dataflow, None, ())

    def finish(self, result: Expr) -> Sequence:
        """Record the result of the function and fill the arrays."""
        sequence = self.sequence
        count = len(sequence.bindings)
        self.reads += [
            (sequence.position[v], count) for v in variables(result) if v in sequence.position
        ]
        sequence.symbols = np.asarray(self.symbols, np.int64)
        sequence.leaf_start = np.asarray(self.starts, np.int64)
        sequence.producers = np.asarray(self.producers, np.int64)
        sequence.last_use = np.full(count, NOWHERE, np.int64)
        if self.reads:
            defined, readers = np.asarray(self.reads, np.int64).T
            np.maximum.at(sequence.last_use, defined, readers)
        return sequence

    def _append(self, binding: Binding, dataflow: bool) -> None:
        leaves: list[Expr] = []
        key: Hashable | None
        try:
            key = self._key(binding, dataflow, leaves)
        except _Fixed:
            key, leaves = None, []
            reader = len(self.sequence.bindings)
            for var in variables(binding.value):
                if var in self.sequence.position:
                    self.reads.append((self.sequence.position[var], reader))
        self._close(binding, dataflow, key, tuple(leaves))

    def _close(
        self, binding: Any, dataflow: bool, key: Hashable | None, leaves: tuple[Expr, ...]
    ) -> None:
        """Append a single element, which is unique if it has no key."""
        here = len(self.sequence.bindings)
        self.symbols.append(self.numbering.of_key(("alone", here) if key is None else key))
        for leaf in leaves:
            is_var = isinstance(leaf, ir.Var)
            at = self.sequence.position.get(leaf, NOWHERE) if is_var else NOWHERE
            self.producers.append(at)
            if at != NOWHERE:
                self.reads.append((at, here))
        self.starts.append(len(self.producers))
        self.sequence.leaves.append(leaves)
        self.sequence.bindings.append(binding)
        self.sequence.dataflow.append(dataflow)
        if binding is not None:
            self.sequence.position[binding.var] = here

    def _key(self, binding: Binding, dataflow: bool, leaves: list[Expr]) -> Hashable:
        if not isinstance(binding, relax.VarBinding):
            raise _Fixed  # a MatchCast defines sizes that later types speak of
        value = binding.value
        if isinstance(value, ir.Call):
            if isinstance(value.op, ir.Var):
                raise _Fixed
            described: Hashable = (
                "call",
                self.numbering.of(value.op),
                None if value.attrs is None else self.numbering.of(value.attrs),
                tuple(self.numbering.of(ty) for ty in value.ty_args),
                tuple(self._operand(arg, leaves) for arg in value.args),
            )
        else:
            described = self._operand(value, leaves)
        name = str(binding.var.name)
        notes = (name in self.stationary, self.open_axes.get(name))
        return (described, self.numbering.of(binding.var.ty), dataflow, notes)

    def _operand(self, expr: Expr, leaves: list[Expr]) -> Hashable:
        if _is_leaf(expr):
            leaves.append(expr)
            return ("leaf", self.numbering.of(expr.ty))
        if isinstance(expr, relax.Tuple):
            return ("tuple", tuple(self._operand(item, leaves) for item in expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return ("item", int(expr.index), self._operand(expr.tuple_value, leaves))
        if isinstance(expr, relax.If | relax.Function | relax.SeqExpr | ir.Call):
            raise _Fixed
        if isinstance(expr, ir.Var) and (expr in self.params or expr in self.sequence.position):
            raise _Fixed  # a number computed at run time, of which types may speak
        return ("node", self.numbering.of(expr))


def variables(expr: Expr) -> list[Var]:
    """Return the variables that an expression reads, also in branches and local functions."""
    return list(relax.analysis.free_vars(expr))
