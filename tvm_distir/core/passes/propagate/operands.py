# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give the operands of rewritten calls the placements that the calls require."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.op.distributed import redistribute

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import P, R, placement_of
from tvm_distir.core.ir.types import as_dtensor, carries_value
from tvm_distir.core.propagation.graph.graph import CONST
from tvm_distir.support import StringImm

from .placed_values import PlacedValues
from .tuples import tuple_items


class Operands:
    """A converter of operands, constants and values of other meshes.

    Parameters
    ----------
    values : PlacedValues
        The values of the specialization.
    """

    def __init__(self, values: PlacedValues) -> None:
        self.values = values

    def operand(
        self, k: int, i: int, old: ir.Expr, name: str | None = None, var: relax.Var | None = None
    ) -> ir.Expr:
        """Return operand i of node k in the placement that the node requires."""
        values = self.values
        g = values.g
        v = g.nodes[k].operands[i]
        if v == CONST:
            return self.constant(k, i, old)
        key = handle(old)
        cached = values.exprs.get(key)
        if cached is not None and g.env[key] != (v,):
            cached = None
        route = values.known_route(v)
        if route is not None and route.settled and cached is not None:
            return cached
        self.arrive(v)
        route = values.route(v)
        layout = values.decision.needs(values.inst, k, i, g.values[v].mesh)
        if layout == route.root and cached is not None:
            return cached
        return values.in_layout(v, layout, name, var)

    def constant(self, k: int, i: int, old: ir.Expr) -> Any:
        """Return operand i of node k, a constant, in the placement that the node requires."""
        values = self.values
        g, inst = values.g, values.inst
        node = g.nodes[k]
        mesh = node.mesh
        if node.kind == "call":
            kid = inst.kids[k].graph
            mesh = kid.values[kid.param_values[i]].mesh
        elif node.kind == "ret":
            mesh = max(mesh, 0)
        layout = values.decision.needs(inst, k, i, mesh)
        out = values.constant(old, mesh)
        have = [R] * len(layout)
        ty = out.ty
        device_mesh = values.meshes[mesh]
        if any(x >= 0 for x in layout):
            have = [max(x, R) for x in layout]
            ty = as_dtensor(old.ty, device_mesh, have)
            out = values.emit("const", redistribute(out, device_mesh, placement_of(have)), ty)
        pending = [a for a, x in enumerate(layout) if x == P]
        if pending:
            out = values.emit("const", ops.partial(out, device_mesh, pending), ty)
        return out

    def arrive(self, v: int) -> None:
        """Emit the move that brings a value from another mesh, once as far as it can be seen."""
        values = self.values
        if v in values.roots:
            return
        k, _ = values.g.producer[v]
        source = values.g.nodes[k].operands[0]
        self.arrive(source)
        mesh = values.g.values[source].mesh
        expr = values.in_layout(source, values.decision.needs(values.inst, k, 0, mesh))
        root = values.route(v).root
        call = redistribute(expr, values.mesh(v), placement_of(root))
        moved = values.emit(values.g.values[v].name, call, values.type_of(v, root))
        values.note_arrival(v, moved)

    def arguments(self, k: int, args: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Return all arguments of a call, with tensors in the required placements."""
        values, count, arguments = self.values, itertools.count(), list[Any]()
        g, exprs, operands = values.g, values.exprs, values.g.nodes[k].operands
        for old in unpack(args):
            key = handle(old)
            if key not in g.tensors:
                arguments.append(self._argument(k, old, count))
                continue
            i = next(count)
            v, cached = operands[i], exprs.get(key)
            route = values.known_route(v)
            if cached is not None and route is not None and route.settled and g.env[key] == (v,):
                arguments.append(cached)  # as most are
            else:
                arguments.append(self.operand(k, i, old))
        return arguments

    def _argument(self, k: int, old: ir.Expr, count: Iterator[int]) -> ir.Expr:
        """Return an argument; ``count`` numbers the flat operands."""
        if handle(old) in self.values.g.tensors:
            return self.operand(k, next(count), old)
        ty = old.ty
        if type(ty) is relax.TupleType:
            fields = [self._argument(k, item, count) for item in tuple_items(old)]
            same = self._unchanged_tuple(old, fields)
            return same if same is not None else relax.Tuple(fields)
        is_value = carries_value(ty) and type(old) is not StringImm  # an object in TVM 0.26
        return self.operand(k, next(count), old) if is_value else old

    def _unchanged_tuple(self, old: ir.Expr, fields: list[ir.Expr]) -> Any:
        """Return the old tuple variable's expression when every field is used as it is there."""
        values, key = self.values, handle(old)
        expr = values.exprs.get(key)
        if expr is None or not isinstance(expr.ty, relax.TupleType):
            return None
        leaves = values.g.env[key]
        if len(leaves) != len(fields) or any(v < 0 for v in leaves):
            return None
        same = all(f.same_as(values.roots.get(v)) for f, v in zip(fields, leaves))
        return expr if same else None
