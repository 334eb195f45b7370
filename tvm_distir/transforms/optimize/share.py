# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Remove duplicate collectives and those that the next collective undoes."""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.relax import Expr, Var

from tvm_distir.core.ir.operators import IMPURE, call_axes, dist_op_name, ops
from tvm_distir.core.passes import Rewrite, module_pass

from .binding_rewriter import Editor, FunctionStep, axes_dim, rewrite_of, signature

#: Pairs of collectives along the same axis and dim of which the second undoes the first.
INVERSES = {"local_slice": "all_gather", "all_gather": "local_slice"}


@module_pass("legalized")
def ShareCollectives() -> Rewrite:
    """Bind equal collectives once per function.

    Two are equal when op, operand and attributes are. What is shared lives until its last
    reader. No number changes.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([SHARE])


@module_pass("legalized")
def CancelCollectives() -> Rewrite:
    """Remove collectives that undo each other.

    ``local_slice`` of ``all_gather`` and the reverse along one mesh axis and dim, also where
    moves along other axes and dims stand between them that nothing else reads; an ``all_to_all``
    back to where the value came from. No number changes.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([CANCEL])


class _Share(Editor):
    def prepare(self) -> None:
        """Begin without collectives."""
        self.seen: dict[Any, Any] = {}
        self._lone: dict[Var, tuple[Var, ir.Call] | None] = {}
        """The variable and value by operand, while it has a single collective."""

    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Replace a collective by an earlier equal collective."""
        if kind in IMPURE or len(value.args) != 1:
            return value
        operand = value.args[0]
        if isinstance(operand, ir.Var):
            if operand not in self._lone:
                self._lone[operand] = var, value
                return value
            lone, self._lone[operand] = self._lone[operand], None
            if lone is not None:
                self.seen[signature(lone[1])] = lone[0]
        first = self.seen.setdefault(signature(value), var)
        return value if first.same_as(var) else first


class _Cancel(Editor):
    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Replace a collective that undoes an earlier collective by the operand of the latter."""
        if kind == "all_to_all":
            source: Any = self.known.get(value.args[0])
            if dist_op_name(source) == kind and _is_way_back(value, source):
                return source.args[0]
        if kind not in INVERSES:
            return value
        between, start = self._undone(value)
        if start is None:
            return value
        for step in between[:-1]:
            start = self.emit(_rewrite_operand(step, start), str(var.name))
        return self.normalize(_rewrite_operand(between[-1], start)) if between else start

    def _undone(self, value: ir.Call) -> tuple[list[ir.Call], Any]:
        """Return the moves between two collectives that cancel, with the moved collective."""
        axes, dim = axes_dim(value)
        inverse, at = INVERSES[str(dist_op_name(value))], value.args[0]
        between: list[ir.Call] = []
        while True:
            source: Any = self.known.get(at)
            if dist_op_name(source) == inverse and axes_dim(source) == (axes, dim):
                return between[::-1], source.args[0]
            # Moves along other axes and dims commute with it; read elsewhere they would stay.
            if dist_op_name(source) not in INVERSES or self.readers[at] != 1:
                return [], None
            passed, other = axes_dim(source)
            if set(passed) & set(axes) or other == dim:
                return [], None
            between.append(source)
            at = source.args[0]


def _rewrite_operand(call: ir.Call, x: Expr) -> ir.Call:
    """Write a gather or slice of another operand."""
    make = getattr(ops, str(dist_op_name(call)))
    axes, dim = axes_dim(call)
    return make(x, call.attrs["device_mesh"], axes, dim)


def _is_way_back(second: ir.Call, first: ir.Call) -> bool:
    forward_axes = (call_axes(first), int(first.attrs["gather_dim"]), int(first.attrs["split_dim"]))
    back = (call_axes(second), int(second.attrs["split_dim"]), int(second.attrs["gather_dim"]))
    return forward_axes == back


SHARE = FunctionStep(_Share)
CANCEL = FunctionStep(_Cancel, (*INVERSES, "all_to_all"))
