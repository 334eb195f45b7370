# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the pass ``OrderAxes``."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType
from tvm.relax.op.distributed import redistribute

from tvm_distir.core.ir import (
    as_dtensor,
    carries_value,
    handle,
    mesh_shape,
    meshes,
    relax_functions,
    unpack,
)
from tvm_distir.core.ir.attributes import AXIS_ORDERS_ATTR, PARTIAL_ATTR, stated_orders
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.views import (
    Axes,
    ModuleViews,
    has_views,
    mesh_of,
    moved_axes,
)
from tvm_distir.core.ops import attribute_axes
from tvm_distir.core.passes import Rewrite, module_pass, with_call_views
from tvm_distir.core.rewriting import (
    called_name,
    field_of,
    is_redistribute,
    make_binding,
    make_call,
    make_var,
    map_functions,
    retyped,
    tuple_of,
    typed,
    with_body,
)
from tvm_distir.core.rewriting.native import CAST, FUNCTION_CALL, FunctionView
from tvm_distir.support import GenericConst, PropagationError

from .order_choice import OrderChoice, Orders, stated_view, tiles_of
from .order_problem import OrderProblem
from .ordered_dims import PlacedTensor

_is = operator.is_
_OPEN = (CAST, FUNCTION_CALL)
"""Bindings that may change although what they read stays."""


@module_pass("distributed")
def OrderAxes() -> Rewrite:
    """Choose which of the mesh axes that shard a dim together is major.

    Placements on a mesh shard a dim by its axes in order. Where a value is read in another order,
    a redistribution is a general exchange over both axes. This pass places values on views of the
    mesh (:mod:`tvm_distir.core.ir.views`), so that redistributions between them send the fewest
    bytes: a weight that ``tp`` shards and its optimizer state that ``dp`` shards inside of that
    are a slice and an ``all_gather`` along ``dp`` apart. Orders that change no byte stay as they
    are. A module that has views already is left as it is.

    Returns
    -------
    pass : tvm.transform.Pass
        It raises PropagationError DIST0401 or DIST0405 for a call whose placements follow no rule,
        DIST0405 for stated orders that cannot be, and LoweringError DIST0504 for control flow.
    """

    def order(mod: ir.IRModule) -> ir.IRModule:
        if has_views(meshes(mod)):
            _refuse_statements(mod)
            return mod
        if not any(sum(size > 1 for size in mesh_shape(mesh)) > 1 for mesh in meshes(mod)):
            return _without_statements(mod)  # no two axes can meet on a dim
        choice = OrderChoice(OrderProblem(mod))
        orders = choice.run()
        if not orders:
            return _without_statements(mod)
        return with_call_views(_without_statements(_Rewriter(mod, choice, orders).module()))

    return order


def _without_statements(mod: ir.IRModule) -> ir.IRModule:
    """Return a module whose types have the orders that were stated of its parameters."""
    name = AXIS_ORDERS_ATTR
    return map_functions(mod, lambda fn: fn.without_attr(name) if stated_orders(fn) else fn)


def _refuse_statements(mod: ir.IRModule) -> None:
    """Refuse orders that are stated in a module whose meshes state orders already."""
    for gv, fn in relax_functions(mod):
        for name in stated_orders(fn):
            raise PropagationError(
                "DIST0405",
                "the order of mesh axes is stated, and the module has views of a mesh already",
                location=f"{gv.name_hint}/{name}",
                remedy="State orders by meshes that are views, or by tuples of axes.",
            )


class _Rewriter:
    """A writer of a module whose values are on the views that state their orders.

    Parameters
    ----------
    mod : IRModule
    choice : OrderChoice
    orders : mapping of int to tuple of int
        The order of each root that differs from the module's.
    """

    def __init__(self, mod: ir.IRModule, choice: OrderChoice, orders: Orders) -> None:
        self.mod, self.choice, self.orders = mod, choice, orders
        self.problem, self.views = choice.problem, ModuleViews(mod)
        self.env: dict[int, ir.Expr] = {}  # by handle
        self._types: dict[PlacedTensor, DTensorType] = {}
        self._known: dict[tuple[int, tuple[Axes | None, ...]], DTensorType] = {}
        leaves = self.problem.leaves.items()
        self._moved = {key for key, some in leaves if any(map(self._is_moved, some))}
        self._moves_constants = any(map(self._is_moved, self.problem.constants.values()))

    def module(self) -> ir.IRModule:
        """Return the new module."""
        functions = dict(self.mod.functions.items())
        for gv, fn in self.problem.functions:
            new = self._function(str(gv.name_hint), fn)
            if new is fn:
                continue
            moved = retyped(gv, relax.FuncType([p.ty for p in new.params], new.ret_ty))
            del functions[gv]
            functions[moved], self.env[handle(gv)] = new, moved
        return self.views.module(functions)

    def _is_moved(self, leaf: PlacedTensor | None) -> bool:
        """Return whether a tensor gets another type."""
        return leaf is not None and leaf.has_order and self._type(leaf) is not leaf.ty

    def _function(self, name: str, fn: relax.Function) -> relax.Function:
        stale = iter(self._stale(self.problem.readings[name]))
        params = [self._var(param) for param in fn.params]
        blocks = [self._block(block, stale) for block in fn.body.blocks]
        result, attrs = self._expr(fn.body.body), fn.attrs
        before = [*fn.params, *fn.body.blocks, fn.body.body]
        if all(new.same_as(old) for new, old in zip([*params, *blocks, result], before)):
            return fn
        if attrs and PARTIAL_ATTR in attrs:
            leaves = {
                "params": [leaf for param in fn.params for leaf in self.problem.of(param)],
                "results": self.problem.results[name],
            }
            attrs = ir.make_node(
                "ir.DictAttrs", **{**dict(attrs), PARTIAL_ATTR: self._partial(fn, leaves)}
            )
        return with_body(fn, params, blocks, result, bool(fn.is_pure), attrs)

    def _partial(
        self, fn: relax.Function, leaves: Mapping[str, Sequence[PlacedTensor | None]]
    ) -> dict[str, dict[str, list[int]]]:
        """Return the axes along which parameters and results are partial, on their views."""
        moved: dict[str, dict[str, list[int]]] = {}
        for side, of_side in leaves.items():
            moved[side] = {}
            for number, axes in attribute_axes(fn, side).items():
                leaf = of_side[number]
                mesh = None if leaf is None else self._type(leaf).device_mesh
                new = axes if leaf is None else moved_axes(axes, leaf.ty.device_mesh, mesh)
                moved[side][str(number)] = sorted(new)
        return moved

    def _stale(self, reading: FunctionView) -> list[bool]:
        """Return per binding whether it binds or reads what moved, or may do so."""
        moved = [handle(var) in self._moved for var in reading.variables]
        moved.append(self._moves_constants)  # constants are read by the number -1
        rows = enumerate(zip(reading.kinds, reading.uses), reading.params)
        return [moved[n] or kind in _OPEN or any([moved[r] for r in x]) for n, (kind, x) in rows]

    def _block(self, block: relax.BindingBlock, stale: Iterator[bool]) -> relax.BindingBlock:
        before = unpack(block.bindings)
        bindings = [self._binding(b) if next(stale) else b for b in before]
        return block if all(map(_is, bindings, before)) else type(block)(bindings)

    def _binding(self, binding: relax.Binding) -> relax.Binding:
        old, bound = binding.value, binding.var
        var = self._var(bound)
        value = self._value(bound, old, var)
        if value is old and var is bound:
            return binding
        if isinstance(binding, relax.MatchCast):
            return relax.MatchCast(var, value, var.ty)
        return make_binding(var, value)

    def _var(self, var: relax.Var) -> relax.Var:
        key = handle(var)
        if key not in self._moved:
            return var
        if key not in self.env:
            ty = self._retyped(var.ty, iter(self.problem.leaves[key]))
            self.env[key] = make_var(var.name, ty, isinstance(var, relax.DataflowVar))
        return self.env[key]

    def _retyped(self, ty: ir.Type, leaves: Iterator[PlacedTensor | None]) -> ir.Type:
        if isinstance(ty, relax.TupleType):
            before = ty.fields[:]
            fields = [self._retyped(field, leaves) for field in before]
            return ty if all(map(_is, fields, before)) else relax.TupleType(fields)
        leaf = next(leaves) if carries_value(ty) else None
        return self._type(leaf) if leaf is not None and self._is_moved(leaf) else ty

    def _type(self, leaf: PlacedTensor) -> DTensorType:
        """Return the type of a tensor on the view that states its orders."""
        if leaf not in self._types:
            roots = self.choice.roots(leaf)
            key = handle(leaf.ty), tuple(map(self.orders.get, roots))
            if key not in self._known:
                (view, labels), ty = (
                    stated_view(leaf, tiles_of(leaf.tiles, roots, self.orders)),
                    leaf.ty,
                )
                if view != leaf.view:
                    mesh = self.views.declared(mesh_of(view.family, view.axes))
                    ty = as_dtensor(ty.tensor_ty, mesh, labels)
                self._known[key] = ty
            self._types[leaf] = self._known[key]
        return self._types[leaf]

    def _expr(self, expr: Any) -> Any:
        """Return an expression of normal form that is no call."""
        if isinstance(expr, relax.Tuple):
            before = expr.fields[:]
            fields = [self._expr(field) for field in before]
            return expr if all(map(_is, fields, before)) else tuple_of(fields)
        if isinstance(expr, relax.TupleGetItem):
            source = expr.tuple_value
            new = self._expr(source)
            return expr if new is source else field_of(new, int(expr.index))
        if isinstance(expr, GenericConst):
            leaf, before = self.problem.constants.get(handle(expr)), expr.ty
            ty = before if leaf is None else self._retyped(before, iter([leaf]))
            return expr if ty is before else GenericConst(expr.value, ty)
        return self.env.get(handle(expr), expr)

    def _value(self, old: relax.Var, value: Any, var: relax.Var) -> Any:
        if not isinstance(value, ir.Call):
            return self._expr(value)
        before, callee, ty = value.args[:], value.op, var.ty
        args = [self._expr(arg) for arg in before]
        op = self.env.get(handle(callee), callee)
        if op is callee and var is old and all(map(_is, args, before)):
            return value
        if is_redistribute(value) and isinstance(ty, DTensorType):
            return typed(redistribute(args[0], ty.device_mesh, ty.placement), ty)
        if called_name(value) == "relax.dist.partial":
            attrs, mesh = value.attrs, ty.device_mesh
            axes = moved_axes((int(a) for a in attrs["mesh_axes"]), attrs["device_mesh"], mesh)
            return typed(ops.partial(args[0], mesh, sorted(axes), str(attrs["op"])), ty)
        leaves = iter(self.problem.of(old))
        types = [self._retyped(t, leaves) for t in value.ty_args]
        return make_call(op, args, value.attrs, types, ty, value.span)
