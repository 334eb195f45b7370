# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Track which expression holds a value in which placement, and convert between placements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax import Var
from tvm.relax.distributed import DeviceMesh
from tvm.relax.op.distributed import redistribute

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.mesh import meshes
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import P, R, placement_of
from tvm_distir.core.ir.types import as_dtensor, tensor_type
from tvm_distir.core.propagation.decision import Decision, Instance
from tvm_distir.core.propagation.solve.conversions import Layout, ReshardPath
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.nodes import make_binding, make_var
from tvm_distir.support import GenericConst

from .tuples import walk_fields

OUTSIDE = relax.Var("outside")
"""Marker of an old variable that is visible outside its block."""


class PlacedValues:
    """The expressions of the values of a specialization, by placement.

    Parameters
    ----------
    mod : IRModule
        The module, at level 2.
    decision : Decision
    inst : Instance
        The specialization.

    Attributes
    ----------
    g : Graph
        The graph of the specialization.
    exprs : dict of handle to expression
        New expression of each old variable.
    roots : dict of value number to expression
        The expression of each value, in the placement in which it is produced.
    aliases : dict of handle to expression
        The old expression of each old variable that is not bound to a call.
    bindings : list of Binding
        The bindings of the open block.
    dataflow : bool
        Whether that is a dataflow block.
    """

    def __init__(self, mod: ir.IRModule, decision: Decision, inst: Instance) -> None:
        self.decision, self.inst, self.g = decision, inst, inst.graph
        self.meshes: list[DeviceMesh] = meshes(mod)
        self.exprs: dict[int, ir.Expr] = {}
        self.roots: dict[int, ir.Expr] = {}
        self.aliases: dict[int, ir.Expr] = {}
        self.bindings: list[relax.Binding] = []
        self.dataflow = False
        self._converted: dict[tuple[int, Layout], ir.Expr] = {}
        self._routes: dict[int, ReshardPath] = decision.settled(inst)
        self._types: dict[tuple[int, int, Layout], ir.Type] = {}
        # What the open dataflow block hides, beside its variables: outputs that have another
        # name inside, fields of tuples bound in it, values that came from another mesh in it, and
        # the conversions that were there before.
        self._shadowed: Mapping[int, ir.Expr] = {}
        self._fields: dict[int, Any] = {}
        self._arrived: list[int] = []
        self._before: set[tuple[int, Layout]] = set()

    # blocks ----------------------------------------------------------------------------

    def open_block(self, dataflow: bool, shadowed: Mapping[int, Any] | None = None) -> None:
        """Begin a block.

        Parameters
        ----------
        dataflow : bool
        shadowed : mapping of handle to Var, optional
            The outputs of the dataflow block that have another name inside it, until
            :meth:`close_dataflow` binds them.
        """
        self.bindings, self.dataflow = [], dataflow
        self._shadowed = shadowed or {}
        if dataflow:
            self._before = set(self._converted)

    def close_dataflow(self) -> None:
        """Bind the shadowed outputs, and forget the variables that the dataflow block hides."""
        for v, field in self._fields.items():  # outside it is taken of its tuple again
            if is_dataflow(self.roots.get(v)):
                self.roots[v] = field
        self._fields.clear()
        for v in self._arrived:  # outside it is brought again
            if is_dataflow(self.roots.get(v)):
                del self.roots[v]
        self._arrived.clear()
        for key, var in self._shadowed.items():
            inner = self.exprs[key]
            outer = make_var(var.name, inner.ty)
            self.bindings.append(make_binding(outer, inner))
            for v in self.g.env[key]:
                self.roots.pop(v, None)
            self.bind_leaves(var, outer)
        before = self._before
        self._converted = {
            k: v for k, v in self._converted.items() if k in before or not is_dataflow(v)
        }

    def stays_inside(self, var: Var) -> bool:
        """Return whether a dataflow variable is bound to a variable that the block hides."""
        return is_dataflow(var) or handle(var) in self._shadowed

    def emit(self, name: str, value: ir.Expr, ty: ir.Type, var: Var | None = None) -> ir.Expr:
        """Bind an expression of known type; ``var`` keeps the kind of an old variable."""
        if type(value) is ir.Call:
            typed(value, ty)
        inner = self.dataflow and (var is None or self.stays_inside(var))
        new = make_var(name, ty, inner)
        self.bindings.append(make_binding(new, value))
        return new

    # what is known of a value ----------------------------------------------------------

    def mesh(self, value: int) -> DeviceMesh:
        """Return the mesh of a value."""
        return self.meshes[self.g.values[value].mesh]

    def known_route(self, value: int) -> ReshardPath | None:
        """Return :meth:`route` where it is settled, or was asked for before."""
        return self._routes.get(value)

    def stays(self, value: int) -> bool:
        """Return whether every reader is known to use a value in its produced placement."""
        route = self._routes.get(value)
        return route is not None and route.settled

    def route(self, value: int) -> ReshardPath:
        """Return the produced placement of a value and the path to its other placements."""
        path = self._routes.get(value)
        if path is None:
            path = self._routes[value] = self.decision.route(self.inst, value)
        return path

    def type_of(self, value: int, layout: Layout) -> ir.Type:
        """Return the DTensor type of a value in a placement, None for an opaque value."""
        flat = self.g.values[value]
        base = flat.ty
        if base is None:
            return None
        key = (handle(base), flat.mesh, layout)
        placed = self._types.get(key)
        if placed is None:
            labels = tuple(R if x == P else x for x in layout) if P in layout else layout
            placed = self._types[key] = as_dtensor(base, self.meshes[flat.mesh], labels)
        return placed

    def root_type(self, value: int) -> ir.Type:
        """Return the DTensor type of a value as it is produced."""
        return self.type_of(value, self.route(value).root)

    def bind_leaves(self, var: Var, expr: ir.Expr) -> None:
        """Note that the leaves of a Relax variable are fields of a new expression."""
        key = handle(var)
        self.exprs[key] = expr
        leaves = self.g.env[key]
        ty = var.ty
        if type(ty) is relax.TensorType:
            self.note_root(leaves[0], expr)
        else:
            walk_fields(expr, ty, iter(leaves), self.note_root)

    def note_root(self, value: int, expr: ir.Expr) -> None:
        """Record the expression of a value in its produced placement, unless it is known."""
        if value >= 0 and value not in self.roots:
            self.roots[value] = expr

    def note_arrival(self, value: int, expr: ir.Expr) -> None:
        """Note that a value came from another mesh in the open block."""
        self.roots[value] = expr
        self._arrived.append(value)

    # conversions -----------------------------------------------------------------------

    def in_layout(
        self, value: int, layout: Layout, name: str | None = None, var: Var | None = None
    ) -> ir.Expr:
        """Return the expression of a value in a placement, converted at most once."""
        route = self.route(value)
        if layout == route.root:
            return self._in_root(value)
        key = (value, layout)
        if key in self._converted:
            return self._converted[key]
        source = route.source(layout)
        start = self.in_layout(value, source)
        self._converted[key] = self._convert(value, start, source, layout, name, var)
        return self._converted[key]

    def let_out(self, value: int, layout: Layout) -> None:
        """Convert a value for a reader behind the open dataflow block, which it is the end of."""
        expr = self.in_layout(value, layout, var=OUTSIDE)
        if is_dataflow(expr):  # it was converted for a reader inside
            expr = self.emit(str(expr.name), expr, expr.ty, OUTSIDE)
            self._converted[value, layout] = expr

    def _in_root(self, value: int) -> ir.Expr:
        root = self.roots[value]
        if type(root) is relax.TupleGetItem:
            if self.dataflow:
                self._fields[value] = root
            root = self.field(self.g.values[value].name, root)
            self.roots[value] = root
        return root

    def field(self, name: str, expr: ir.Expr) -> Any:
        """Bind a field of a (nested) tuple step by step: each is taken of a variable."""
        source = expr.tuple_value
        if isinstance(source, relax.TupleGetItem):
            expr = relax.TupleGetItem(self.field(name, source), expr.index)
        return self.emit(name, expr, expr.ty)

    def _convert(
        self,
        value: int,
        start: ir.Expr,
        have: Layout,
        want: Layout,
        name: str | None,
        var: Var | None,
    ) -> ir.Expr:
        name = name or self.g.values[value].name
        mesh = self.mesh(value)
        pending = [i for i, x in enumerate(want) if x == P]
        moved = any(x != y and not (x == R and y == P) for x, y in zip(have, want))
        out = start
        if moved:
            call = redistribute(start, mesh, placement_of([R if x == P else x for x in want]))
            out = self.emit(name, call, self.type_of(value, want), None if pending else var)
        if pending:
            out = self.emit(name, ops.partial(out, mesh, pending), self.type_of(value, want), var)
        return out

    # constants -------------------------------------------------------------------------

    def constant(self, value: Any, mesh: int) -> Any:
        """Return the placed constant that an old expression is, or represents.

        A constant that is no tensor, as ``R.dtype("float32")``, has no placement.
        """
        constant = self._unaliased(value)
        if tensor_type(constant.ty) is None:
            return constant
        labels = [R] * len(self.decision.mesh_axes(mesh))
        return GenericConst(constant.value, as_dtensor(constant.ty, self.meshes[mesh], labels))

    def _unaliased(self, value: Any) -> Any:
        """Return the expression that an old variable, or a field of it, is another name of."""
        if type(value) is relax.TupleGetItem:
            return self._unaliased(self._unaliased(value.tuple_value).fields[value.index])
        bound = self.aliases.get(handle(value))
        return value if bound is None else self._unaliased(bound)


def is_dataflow(expr: ir.Expr) -> bool:
    """Return whether an expression is a variable that its dataflow block hides."""
    return type(expr) is relax.DataflowVar
