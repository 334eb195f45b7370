# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Which expression holds a value, in which form, and the conversions between forms."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh
from tvm.relax.op.distributed import redistribute

from ...ir import P, R, as_dtensor, carries_value, meshes, ops, placement_of
from ...ir.rewrite import handle, make_binding, make_var
from ...propagation import Decision, Instance
from ...propagation.solve import Form, Route


class ValueForms:
    """Expressions of the values of one specialisation, in every form asked for.

    ``exprs`` maps each old variable, by its handle, to its new expression; ``homes`` each value
    number to the expression of its root form; ``made`` has the forms converted so far, ``fields``
    the homes that were bound to a variable of the open dataflow block, ``arrived`` the values that
    came from another mesh in it. All forget what a closed block hides. ``aliases`` maps each old
    variable that is bound to no call, by its handle, to the old expression.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        decision: Decision,
        inst: Instance,
        old: relax.Function,
        callees: dict[int, ir.GlobalVar],
    ) -> None:
        self.mod, self.decision, self.inst, self.old, self.callees = (
            mod,
            decision,
            inst,
            old,
            callees,
        )
        self.g = inst.graph
        self.meshes: list[DeviceMesh] = meshes(mod)
        self.exprs: dict[int, Any] = {}
        self.homes: dict[int, Any] = {}
        self.made: dict[tuple[int, Form], Any] = {}
        self.routes: dict[int, Route] = decision.settled(inst)
        self.shadowed: dict[int, Any] = {}
        self.fields: dict[int, Any] = {}
        self.arrived: list[int] = []
        self.aliases: dict[int, Any] = {}
        self.types: dict[tuple[int, int, Form], Any] = {}
        self.bindings: list[Any] = []
        self.dataflow = False

    # values ----------------------------------------------------------------------------

    def _mesh(self, value: int) -> DeviceMesh:
        return self.meshes[self.g.values[value].mesh]

    def _route(self, value: int) -> Route:
        found = self.routes.get(value)
        if found is None:
            found = self.routes[value] = self.decision.route(self.inst, value)
        return found

    def _type(self, value: int, form: Form) -> Any:
        """DTensor type of a value in a form, None for an opaque value."""
        flat = self.g.values[value]
        base = flat.ty
        if base is None:
            return None
        key = (handle(base), flat.mesh, form)
        placed = self.types.get(key)
        if placed is None:
            labels = tuple(R if x == P else x for x in form) if P in form else form
            placed = self.types[key] = as_dtensor(base, self.meshes[flat.mesh], labels)
        return placed

    def _root_type(self, value: int) -> Any:
        return self._type(value, self._route(value).root)

    def _bind_leaves(self, var: Any, expr: Any) -> None:
        """Note that the leaves of a Relax variable are fields of a new expression."""
        key = handle(var)
        self.exprs[key] = expr
        leaves = self.g.env[key]
        ty = var.ty
        if type(ty) is relax.TensorType:
            self._home(leaves[0], expr)
        else:
            walk_fields(expr, ty, iter(leaves), self._home)

    def _home(self, value: int, expr: Any) -> None:
        if value >= 0 and value not in self.homes:
            self.homes[value] = expr

    # emission --------------------------------------------------------------------------

    def _emit(self, name: str, value: Any, ty: Any, var: Any = None) -> Any:
        """Bind an expression of known type; ``var`` keeps the kind of an old variable."""
        if type(value) is ir.Call and value.ty.is_missing():
            relax.expr._update_type(value, ty)
        inner = self.dataflow and (var is None or self._stays_inside(var))
        new = make_var(name, ty, inner)
        self.bindings.append(make_binding(new, value))
        return new

    def _stays_inside(self, var: Any) -> bool:
        """Whether a variable of a dataflow block is bound to one that the block hides."""
        return is_dataflow(var) or handle(var) in self.shadowed

    def _form(self, value: int, form: Form, name: str | None = None, var: Any = None) -> Any:
        """Expression of a value in a form, converting it at most once."""
        route = self._route(value)
        if form == route.root:
            return self._at_home(value)
        key = (value, form)
        if key in self.made:
            return self.made[key]
        source = route.source(form)
        start = self._form(value, source)
        self.made[key] = self._convert(value, start, source, form, name, var)
        return self.made[key]

    def _at_home(self, value: int) -> Any:
        home = self.homes[value]
        if type(home) is relax.TupleGetItem:
            if self.dataflow:
                self.fields[value] = home
            home = self._field(self.g.values[value].name, home)
            self.homes[value] = home
        return home

    def _field(self, name: str, expr: Any) -> Any:
        """Bind a field of a (nested) tuple step by step: each is taken of a variable."""
        whole = expr.tuple_value
        if isinstance(whole, relax.TupleGetItem):
            expr = relax.TupleGetItem(self._field(name, whole), expr.index)
        return self._emit(name, expr, expr.ty)

    def _convert(
        self, value: int, start: Any, have: Form, want: Form, name: str | None, var: Any
    ) -> Any:
        name = name or self.g.values[value].name
        mesh = self._mesh(value)
        pending = [i for i, x in enumerate(want) if x == P]
        moved = any(x != y and not (x == R and y == P) for x, y in zip(have, want))
        out = start
        if moved:
            complete = [R if x == P else x for x in want]
            call = redistribute(start, mesh, placement_of(complete))
            out = self._emit(name, call, self._type(value, want), None if pending else var)
        if pending:
            out = self._emit(name, ops.partial(out, mesh, pending), self._type(value, want), var)
        return out

    def _plain_expr(self, value: Any) -> Any:
        """An expression without conversions: values in their root forms."""
        known = self.exprs.get(handle(value))
        if known is not None:
            return known
        if type(value) is relax.Tuple:
            return relax.Tuple([self._plain_expr(f) for f in value.fields[:]])
        if type(value) is relax.TupleGetItem:
            whole = self._plain_expr(value.tuple_value)
            if type(whole) is relax.Tuple:
                return whole.fields[value.index]
            return relax.TupleGetItem(whole, value.index)
        if type(value) is ir.GenericConst:
            return self._constant(value, 0)
        return value

    def _cast_type(self, value: int, plain: Any) -> Any:
        """Type of a field of a cast: the value's, the cast's own for a constant."""
        if value >= 0:
            return self._root_type(value)
        return as_dtensor(plain, self.meshes[0], [R] * len(self.decision.mesh_axes(0)))

    def _constant(self, value: Any, mesh: int) -> Any:
        """The placed constant that an old expression is, or stands for."""
        labels = [R] * len(self.decision.mesh_axes(mesh))
        constant = self._unaliased(value)
        return ir.GenericConst(constant.value, as_dtensor(constant.ty, self.meshes[mesh], labels))

    def _unaliased(self, value: Any) -> Any:
        """The expression that an old variable, or a field of one, is another name of."""
        if type(value) is relax.TupleGetItem:
            whole = self._unaliased(value.tuple_value)
            return self._unaliased(whole.fields[value.index])
        bound = self.aliases.get(handle(value))
        return value if bound is None else self._unaliased(bound)


def tuple_items(expr: Any) -> list[Any]:
    """The fields of an expression of a tuple type."""
    if type(expr) is relax.Tuple:
        return list(expr.fields[:])
    return [relax.TupleGetItem(expr, i) for i in range(len(expr.ty.fields))]


def is_dataflow(expr: Any) -> bool:
    """Whether an expression is a variable that its dataflow block hides."""
    return type(expr) is relax.DataflowVar


def rebuilt(ty: Any, leaves: Any) -> Any:
    """A type of the same nesting with new leaves; None keeps the old leaf."""
    if type(ty) is relax.TupleType:
        return relax.TupleType([rebuilt(f, leaves) for f in ty.fields[:]])
    if not carries_value(ty):
        return ty
    new = next(leaves, None)
    return ty if new is None else new


def walk_fields(expr: Any, ty: Any, leaves: Any, visit: Any) -> None:
    """Visit (leaf number, expression of that field) over a nested tuple type."""
    if type(ty) is not relax.TupleType:
        if carries_value(ty):
            visit(next(leaves), expr)
        return
    for i, field in enumerate(ty.fields[:]):
        walk_fields(relax.TupleGetItem(expr, i), field, leaves, visit)
