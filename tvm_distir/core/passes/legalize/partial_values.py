# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Track the partial sums of a function's variables during legalization, and complete them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.ir import Call, Expr, GlobalVar
from tvm.relax import BlockBuilder, Var
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import R
from tvm_distir.core.ir.types import as_dtensor, flat_types
from tvm_distir.core.ops.terms import Terms, axes_of, sums, without
from tvm_distir.core.rewriting.calls import leaves_of, tuple_of
from tvm_distir.core.rewriting.repeated_bindings import RewrittenValues
from tvm_distir.core.rewriting.writer import BlockWriter
from tvm_distir.support import GenericConst

Leaf = tuple[Any, int]


class TransferTags:
    """A counter of the transfers of a module."""

    def __init__(self) -> None:
        self.next = 0

    def take(self) -> int:
        """Return a number not given before."""
        self.next += 1
        return self.next - 1


#: How a variable is read, as bits: by ``R.dist.partial``, by a reduction, by anything else.
WRAP, REDUCE, USE, ITEM = 1, 2, 4, 8


class LegalizedValues(RewrittenValues):
    """The state of a function's variables, and the writer of new bindings.

    Parameters
    ----------
    name : str
        Name of the function.
    builder : BlockBuilder
        Infers the types of new calls.
    callees : mapping of GlobalVar to GlobalVar
        Functions whose type changes.
    impure : bool
        Whether the function transfers between meshes, itself or in a callee.

    Attributes
    ----------
    env : dict
        The replacement of a variable, or of a callee.
    terms : dict
        Unfinished reductions of the leaves of variables.
    raw : dict
        The results of reducing calls: the variable of the terms, and the axes along which the call
        made them.
    sources : dict
        Redistributions that were left to the ``R.dist.partial`` that reads them.
    reads : dict
        The kinds of reads of each variable: :data:`WRAP`, :data:`REDUCE`, :data:`USE`,
        :data:`ITEM` (a field is read) together.
    written : bool
        Whether the function changes.
    """

    def __init__(
        self, name: str, builder: BlockBuilder, callees: Mapping[GlobalVar, GlobalVar], impure: bool
    ) -> None:
        self.name, self.builder, self.impure = name, builder, impure
        self.env: dict[Expr, Expr] = dict(callees)
        self.terms: dict[Leaf, Terms] = {}
        self.raw: dict[Expr, tuple[Any, tuple[int, ...]]] = {}
        self.sources: dict[Expr, Call] = {}
        self.reads: dict[Expr, int] = {}
        self._finished: dict[tuple[Any, int, tuple[int, ...]], Any] = {}
        self.writer = BlockWriter(builder, False)
        self.written = impure

    def open_block(self, dataflow: bool) -> None:
        """Begin a block; values reduced in the previous block are no longer visible."""
        self.writer = BlockWriter(self.builder, dataflow)
        self._finished.clear()

    def repeats(self) -> bool:
        """Return whether bindings stay: in an impure function none does."""
        return not self.impure

    def replacement(self, var: Var) -> tuple[Any, Hashable] | None:
        """Return a variable and its state, if it stays and is no partial sum."""
        leaves = range(len(flat_types(var.ty))) if self.terms else ()
        if var in self.env or any(self.terms.get((var, i)) for i in leaves):
            return None
        return var, ()

    def _own(self, var: Var) -> Expr:
        """Return the variable that replaces ``var`` (dataflow variables end with their block)."""
        if self.impure and isinstance(var, relax.DataflowVar):
            new = relax.Var(var.name, var.ty)
            self.env[var] = new
            return new
        return var

    def alias(self, var: Var, value: Expr) -> None:
        """Let ``var`` be ``value``: by substitution, or by a binding if it leaves its block."""
        cached = [self.terms.get((value, i), ()) for i in range(len(flat_types(var.ty)))]
        target = self._own(var)
        if isinstance(target, relax.DataflowVar) or not isinstance(value, relax.DataflowVar):
            self.env[var] = value
        else:
            self.writer.bind(target, value)
            for i, terms in enumerate(cached):
                self.terms[(target, i)] = terms

    def bind(self, var: Var, value: Expr, terms: Sequence[Terms] = ()) -> Expr:
        """Bind a value whose leaves are partial sums as given; return the variable."""
        target = self._own(var)
        self.writer.bind(target, value)
        for i, partial in enumerate(terms):
            self.terms[(target, i)] = partial
        return target

    def complete(self, expr: Expr, number: int, keep: Sequence[int], name: str) -> Expr:
        """Return a leaf of an expression, reduced along all axes but ``keep``."""
        terms = self.terms_of(expr, number)
        due = without(terms, keep)
        leaf = expr
        if isinstance(expr.ty, relax.TupleType):
            item_key: Any = (expr, number, (-1,))
            if item_key not in self._finished:
                item = self.writer.emit(relax.TupleGetItem(expr, number), name)
                self.terms[(item, 0)] = terms
                self._finished[item_key] = item
            leaf = self._finished[item_key]
        if not due:
            return leaf
        key = (leaf, 0, axes_of(due))
        if key not in self._finished:
            mesh = leaf.ty.device_mesh
            value = leaf
            for op in sorted({op for _, op in due}):
                axes = [a for a, o in due if o == op]
                value = self.writer.emit(ops.all_reduce(value, mesh, axes, op), name)
            self.terms[(value, 0)] = without(terms, axes_of(due))
            self._finished[key] = value
        return self._finished[key]

    def _make_partial(
        self, leaf: Any, axes: Sequence[int], name: str, mesh: DeviceMesh | None = None
    ) -> Any:
        if not axes:
            return leaf
        mesh = leaf.ty.device_mesh if mesh is None else mesh
        if isinstance(leaf, GenericConst) and not isinstance(leaf.ty, DTensorType):
            leaf = GenericConst(leaf.value, as_dtensor(leaf.ty, mesh, [R] * len(mesh.shape)))
        terms = self.terms_of(leaf, 0)
        value = self.writer.emit(ops.partial(leaf, mesh, sorted(axes), "sum"), name)
        self.terms[(value, 0)] = tuple(sorted((*terms, *sums(axes))))
        return value

    def demand(
        self, arg: Expr, target_axes: Sequence[tuple[int, ...]], mesh: DeviceMesh | None = None
    ) -> Expr:
        """Return an argument whose leaves are partial along exactly the wanted axes."""
        leaves = list(leaves_of(arg))
        new, changed = [], False
        for (expr, number, _), axes in zip(leaves, target_axes):
            have = axes_of(self.terms_of(expr, number))
            if have == tuple(axes):
                new.append((expr, number, False))
                continue
            changed = True
            name = getattr(expr, "name", "value")
            leaf = self.complete(expr, number, axes, name)
            leaf = self._make_partial(leaf, [a for a in axes if a not in have], name, mesh)
            new.append((leaf, 0, True))
        return arg if not changed else self._assemble(arg, new, [0])

    def _assemble(self, arg: Expr, leaves: Sequence[Any], at: list[int]) -> Any:
        """Put changed leaves back into the argument's structure."""
        if isinstance(arg, relax.Tuple):
            return tuple_of([self._assemble(f, leaves, at) for f in arg.fields])
        count = len(flat_types(arg.ty))
        mine = leaves[at[0] : at[0] + count]
        at[0] += count
        if not any(done for _, _, done in mine):
            return arg
        if not isinstance(arg.ty, relax.TupleType):
            return mine[0][0]
        fields = [
            e if done else self.complete(e, n, axes_of(self.terms_of(e, n)), "item")
            for e, n, done in mine
        ]
        return tuple_of(fields)
