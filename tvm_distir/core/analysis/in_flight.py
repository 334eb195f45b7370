# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check that each asynchronous value at level 5 is started once and waited for once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes.keys import IN_FLIGHT_ATTR
from tvm_distir.core.ir.operators.async_ops import is_done, started_op
from tvm_distir.core.rewriting.calls import op_name
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.support import LevelError

Tree = int | None | tuple["Tree", ...]
"""Numbers of values in flight, nested as the tuples; None for available values."""


class InFlight:
    """A tracker of values in flight through the bindings of a function.

    The result of a start is read by a single ``collective_done``, and a done reads nothing else.
    Between the two it may be in tuples, and cross the boundary of a private function, once, where
    the attribute ``dist.in_flight`` of that function says so.

    Parameters
    ----------
    mod : IRModule
    fn : Function
    error : callable
        Makes an error of a place and what is there.
    """

    def __init__(
        self, mod: ir.IRModule, fn: relax.Function, error: Callable[[str, str], LevelError]
    ) -> None:
        self.mod, self.fn, self.error = mod, fn, error
        self.flying: dict[ir.Expr, Tree] = {}
        self.names: list[str] = []
        self.closed: set[int] = set()

    def check(self) -> None:
        """Refuse values in flight that are misread (LevelError DIST0451)."""
        for position in _positions(self.fn, "params"):
            param = self.fn.params[position]
            self.flying[param] = self._begun(param.ty, str(param.name))
        for binding in all_bindings(self.fn.body):
            self._binding(
                binding.var, binding.value, f"{binding.var.name} ({op_name(binding.value)})"
            )
        positions, result = _positions(self.fn, "results"), self._tree(self.fn.body.body)
        for position in positions:
            if isinstance(result, tuple):
                self._take(result[position], "result", "what is in flight")
        if not positions and any(True for _ in _leaves(result)):
            raise self.error("result", "what is in flight")
        left = [name for number, name in enumerate(self.names) if number not in self.closed]
        if left:
            raise self.error(left[0], "a start without its done")

    def _binding(self, var: relax.Var, value: ir.Expr, where: str) -> None:
        if is_done(value):
            tree = self._tree(value.args[0])
            if not isinstance(tree, int):
                raise self.error(where, "a done without its start")
            self._take(tree, where, "a done without its start")
            return
        kind = type(value)
        if kind in (relax.Tuple, relax.TupleGetItem, ir.Var, relax.DataflowVar):
            tree = self._tree(value)
            if tree is not None:
                self.flying[var] = tree
            return
        results = self._call(value, where) if kind is ir.Call else ()
        if kind is not ir.Call and any(v in self.flying for v in variables(value)):
            raise self.error(where, "a use of what is in flight")
        if started_op(value) is not None:
            self.flying[var] = self._begun(var.ty, str(var.name))
        elif results:
            self.flying[var] = tuple(
                self._begun(ty, f"{var.name}[{position}]") if position in results else None
                for position, ty in enumerate(var.ty.fields)
            )

    def _call(self, value: ir.Call, where: str) -> tuple[int, ...]:
        """Consume arguments that a call waits for; return the fields of its result in flight."""
        callee = self.mod[value.op] if type(value.op) is ir.GlobalVar else None
        known = isinstance(callee, relax.Function)
        waits = _positions(callee, "params") if known else ()
        for position, arg in enumerate(value.args):
            if position in waits:
                self._take(self._tree(arg), where, "an argument that is not in flight")
            elif any(v in self.flying for v in variables(arg)):
                raise self.error(where, "a use of what is in flight")
        return _positions(callee, "results") if known else ()

    def _begun(self, ty: ir.Type, name: str) -> Tree:
        if isinstance(ty, relax.TupleType):
            return tuple(self._begun(field, f"{name}[{n}]") for n, field in enumerate(ty.fields))
        self.names.append(name)
        return len(self.names) - 1

    def _tree(self, expr: ir.Expr) -> Tree:
        if type(expr) is relax.Tuple:
            fields = tuple(self._tree(field) for field in expr.fields)
            return None if all(field is None for field in fields) else fields
        if type(expr) is relax.TupleGetItem:
            source = self._tree(expr.tuple_value)
            return source[int(expr.index)] if isinstance(source, tuple) else None
        return self.flying.get(expr) if isinstance(expr, ir.Var) else None

    def _take(self, tree: Tree, where: str, fault: str) -> None:
        numbers = list(_leaves(tree))
        if not numbers or not self.closed.isdisjoint(numbers):
            raise self.error(where, fault)
        self.closed.update(numbers)


def _leaves(tree: Tree) -> Iterator[int]:
    if isinstance(tree, tuple):
        for field in tree:
            yield from _leaves(field)
    elif tree is not None:
        yield tree


def _positions(fn: relax.Function, kind: str) -> tuple[int, ...]:
    """Return the parameters or fields of the result of a function that are in flight."""
    notes: Any = fn.attrs[IN_FLIGHT_ATTR] if fn.attrs and IN_FLIGHT_ATTR in fn.attrs else {}
    return tuple(int(position) for position in notes[kind]) if kind in notes else ()
