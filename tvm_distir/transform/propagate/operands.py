# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Operands of rewritten calls: every tensor in the form its call wants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import relax
from tvm.relax.op.distributed import redistribute

from ...ir import P, R, as_dtensor, carries_value, ops, placement_of
from ...ir.rewrite import handle
from ...propagation.graph import CONST
from .values import ValueForms, tuple_items


class Operands(ValueForms):
    """Converts operands, constants and values of other meshes."""

    def _operand(self, k: int, i: int, old: Any, name: str | None = None, var: Any = None) -> Any:
        """Operand i of node k in the form the node wants."""
        v = self.g.nodes[k].operands[i]
        if v == CONST:
            return self._constant_operand(k, i, old)
        key = handle(old)
        known = self.exprs.get(key)
        if known is not None and self.g.env[key] != (v,):
            known = None
        route = self.routes.get(v)
        if route is not None and route.settled and known is not None:
            return known
        self._arrive(v)
        route = self._route(v)
        form = self.decision.needs(self.inst, k, i, self.g.values[v].mesh)
        if form == route.root and known is not None:
            return known
        return self._form(v, form, name, var)

    def _constant_operand(self, k: int, i: int, old: Any) -> Any:
        node = self.g.nodes[k]
        mesh = node.mesh
        if node.kind == "call":
            mesh = self.inst.kids[k].graph.values[self.inst.kids[k].graph.param_value(i)].mesh
        elif node.kind == "ret":
            mesh = max(mesh, 0)
        form = self.decision.needs(self.inst, k, i, mesh)
        out = self._constant(old, mesh)
        have = [R] * len(form)
        ty = out.ty
        if any(x >= 0 for x in form):
            have = [max(x, R) for x in form]
            ty = as_dtensor(old.ty, self.meshes[mesh], have)
            out = self._emit("const", redistribute(out, self.meshes[mesh], placement_of(have)), ty)
        pending = [a for a, x in enumerate(form) if x == P]
        if pending:
            out = self._emit("const", ops.partial(out, self.meshes[mesh], pending), ty)
        return out

    def _arrive(self, v: int) -> None:
        """Emit the move that brings a value from another mesh, once as far as it can be seen."""
        if v in self.homes:
            return
        k, _ = self.g.producer[v]
        node = self.g.nodes[k]
        source = node.operands[0]
        self._arrive(source)
        mesh = self.g.values[source].mesh
        expr = self._form(source, self.decision.needs(self.inst, k, 0, mesh))
        root = self._route(v).root
        call = redistribute(expr, self._mesh(v), placement_of(root))
        self.homes[v] = self._emit(self.g.values[v].name, call, self._type(v, root))
        self.arrived.append(v)

    def _arguments(self, k: int, args: Sequence[Any]) -> list[Any]:
        """All arguments of a call, tensors in their wanted forms."""
        count = itertools.count()
        return [self._argument(k, a, count) for a in args[:]]

    def _argument(self, k: int, old: Any, count: Iterator[int]) -> Any:
        """One argument; ``count`` numbers the flat operands."""
        ty = old.ty
        if type(ty) is relax.TensorType:
            return self._operand(k, next(count), old)
        if type(ty) is relax.TupleType:
            fields = [self._argument(k, item, count) for item in tuple_items(old)]
            same = self._unchanged_tuple(old, fields)
            return same if same is not None else relax.Tuple(fields)
        return self._operand(k, next(count), old) if carries_value(ty) else old

    def _unchanged_tuple(self, old: Any, fields: list[Any]) -> Any:
        """The old tuple variable's expression when every field is used as it is there."""
        expr = self.exprs.get(handle(old))
        if expr is None or not isinstance(expr.ty, relax.TupleType):
            return None
        leaves = self.g.env[handle(old)]
        if len(leaves) != len(fields) or any(v < 0 for v in leaves):
            return None
        same = all(f.same_as(self.homes.get(v)) for f, v in zip(fields, leaves))
        return expr if same else None
