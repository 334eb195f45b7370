# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Type the results of calls and of the function, with pending reductions and conversions."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import P
from tvm_distir.core.ir.types import carries_value, tensor_type, value_types
from tvm_distir.core.propagation.graph.graph import CONST

from .operands import Operands
from .placed_values import PlacedValues
from .tuples import rebuilt, tuple_items


class CallResults:
    """A writer of the results of calls, with their types.

    Parameters
    ----------
    values : PlacedValues
        The values of the specialization.
    """

    def __init__(self, values: PlacedValues) -> None:
        self.values = values

    def raw_type(self, k: int, j: int) -> ir.Type:
        """Return the type of result j of node k as the call gives it."""
        values = self.values
        v = values.g.nodes[k].results[j]
        route = values.route(v)
        layout = route.root if route.settled else values.decision.value_layout(values.inst, v)
        return values.type_of(v, layout)

    def field_type(self, k: int, j: int, plain: ir.Type) -> Any:
        """Return type argument j of node k, with a placement if it is a tensor type."""
        return plain if tensor_type(plain) is None else self.raw_type(k, j)

    def type_of(self, k: int, plain: ir.Type) -> ir.Type:
        """Return the type of a call's result as the call gives it."""
        if type(plain) is relax.TensorType:
            return self.raw_type(k, 0)
        g = self.values.g
        types = [
            self.raw_type(k, j) if g.values[v].ty is not None else t
            for j, (v, t) in enumerate(zip(g.nodes[k].results, value_types(plain)))
        ]
        return rebuilt(plain, iter(types))

    def bind(self, k: int, var: relax.Var, call: ir.Call, ty: ir.Type) -> None:
        """Bind a call; wrap results whose pending reduction must wait."""
        values, name = self.values, var.name
        node = values.g.nodes[k]
        waits = [self._waiting(k, v) for v in node.results]
        single = type(var.ty) is not relax.TupleType
        if single and waits[0]:
            raw = values.emit(name, call, ty)
            wrapped = ops.partial(raw, values.mesh(node.results[0]), waits[0])
            new = values.emit(name, wrapped, ty, var)
        else:
            new = values.emit(name, call, ty, var)
        values.bind_leaves(var, new)
        if not single:
            for v, axes in zip(node.results, waits):
                if axes:
                    raw = values.roots[v]
                    wrapped = ops.partial(values.field(name, raw), values.mesh(v), axes)
                    values.roots[v] = values.emit(name, wrapped, raw.ty)

    def _waiting(self, k: int, v: int) -> list[int]:
        """Return the mesh axes along which a call's reduction stays pending, with those carried."""
        values = self.values
        node, root = values.g.nodes[k], values.route(v).root
        if node.rule is None or P not in root:
            return []
        factors = values.decision.factors(values.inst, k, values.g.values[v].mesh)
        sum_axes = [
            a
            for a, f in enumerate(factors)
            if f is not None and node.rule.factors[f].kind == "sum" and root[a] == P
        ]
        return [a for a, x in enumerate(root) if x == P] if sum_axes else []


class Returned:
    """A converter of the results of the function.

    Parameters
    ----------
    values : PlacedValues
        The values of the specialization.
    operands : Operands
        The operands of the specialization.
    body : Expr
        The result expression of the old function.
    """

    def __init__(self, values: PlacedValues, operands: Operands, body: ir.Expr) -> None:
        self.values, self.operands, self.body = values, operands, body

    def convert(self) -> None:
        """Convert the results of the function while the last dataflow block is still open."""
        values = self.values
        for k in values.g.rets:
            v = values.g.nodes[k].operands[0]
            if v < 0:
                continue
            self.operands.arrive(v)
            layout = values.decision.needs(values.inst, k, 0, values.g.values[v].mesh)
            if layout != values.route(v).root:
                values.let_out(v, layout)

    def expression(self) -> ir.Expr:
        """Return the result of the new function."""
        return self._expression(self.body, self.body.ty, list(self.values.g.rets))

    def _expression(self, old: ir.Expr, ty: ir.Type, rets: list[int]) -> ir.Expr:
        """Rewrite a returned expression; remove its nodes from the front of ``rets``."""
        values = self.values
        if type(ty) is relax.TupleType:
            key = handle(old)
            if type(old) is not relax.Tuple and key in values.exprs:
                roots = rets[: len(values.g.env[key])]
                if all(self._is_root(k) for k in roots):
                    del rets[: len(roots)]
                    return values.exprs[key]
            parts = zip(tuple_items(old), unpack(ty.fields))
            return relax.Tuple([self._expression(x, t, rets) for x, t in parts])
        if not carries_value(ty):
            return old
        k = rets.pop(0)
        v = values.g.nodes[k].operands[0]
        if v == CONST:
            return self.operands.constant(k, 0, old)
        self.operands.arrive(v)
        layout = values.decision.needs(values.inst, k, 0, values.g.values[v].mesh)
        cached = values.exprs.get(handle(old))
        if layout == values.route(v).root and cached is not None:
            return cached
        return values.in_layout(v, layout)

    def _is_root(self, k: int) -> bool:
        """Return whether a result is returned in the placement in which it is produced."""
        values = self.values
        v = values.g.nodes[k].operands[0]
        if v < 0:
            return False
        layout = values.decision.needs(values.inst, k, 0, values.g.values[v].mesh)
        return layout == values.route(v).root
