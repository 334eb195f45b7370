# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower each binding of a function from level 4 to level 5."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.ir.types import FieldLeaves, flat_types
from tvm_distir.core.ops.packed import is_packed_call
from tvm_distir.core.ops.terms import attribute_axes, axes_of, moved_terms, sums
from tvm_distir.core.rewriting.calls import is_tensors, leaves_of, rebuild

from .moves import LocalMoves
from .op_calls import OpCalls
from .packed import packed_call
from .values import LocalValues

REPLICA_TO_SHARD = "relax.dist.redistribute_replica_to_shard"


class Bindings:
    """A lowering of individual bindings.

    Parameters
    ----------
    values : LocalValues
        The local values of the function that holds the bindings.
    """

    def __init__(self, values: LocalValues) -> None:
        self.values = values
        self.moves, self.op_calls = LocalMoves(values), OpCalls(values)
        self._leaves = FieldLeaves()

    def _here(self, var: relax.Var, value: ir.Expr) -> bool:
        values = self.values
        where = values.context.meshes_of(var.ty)
        fields = self._fields(value) if len(where) > 1 else None
        if fields is not None:
            values.tuples[var] = fields
            if values.writer.dataflow and not isinstance(var, relax.DataflowVar):
                self._let_out(fields)
            values.note(
                var, [values.terms_of(e, n) for e, n, _ in leaves_of(relax.Tuple(fields))], False
            )
            return False
        if type(value) is relax.TupleGetItem and value.tuple_value in values.tuples:
            item = values.tuples[value.tuple_value][int(value.index)]
            if values.number in where:
                terms = [values.terms_of(e, n) for e, n, _ in leaves_of(item)]
                values.bind(var, values.local(item), terms, False)
            return False
        if not where:
            return not is_tensors(var.ty) or not isinstance(value, ir.Call)
        return values.number in where

    def _fields(self, value: ir.Expr) -> list[Any] | None:
        """Return the fields of a tuple over several meshes; None for other values."""
        values = self.values
        if isinstance(value, relax.Tuple):
            return list(value.fields)
        if type(value) is relax.TupleGetItem and value.tuple_value in values.tuples:
            return self._fields(values.tuples[value.tuple_value][int(value.index)])
        return values.tuples.get(value) if isinstance(value, ir.Var) else None

    def _let_out(self, fields: Iterable[Any]) -> None:
        """Export the fields of a tuple that spans meshes from its dataflow block."""
        values = self.values
        for field in fields:
            if isinstance(field, relax.Tuple):
                self._let_out(field.fields)
            elif isinstance(field, ir.Var) and field in values.tuples:
                self._let_out(values.tuples[field])
            elif isinstance(field, relax.DataflowVar):
                if values.number not in values.context.meshes_of(field.ty):
                    continue
                value = values.local(field)
                if isinstance(value, relax.DataflowVar):
                    values.env[field] = relax.Var(str(field.name), value.ty)
                    values.writer.bind(values.env[field], value)

    def visit(self, var: relax.Var, value: ir.Expr, like: int = -1) -> None:
        """Write the local form of a binding, if it belongs to this mesh."""
        if not self._here(var, value):
            return
        kind = dist_op_name(value)
        is_call = type(value) is ir.Call
        op: Any = value.op if is_call else None
        name = str(op.name) if type(op) is ir.Op else ""
        if name in ("relax.dist.redistribute", "relax.dist.annotate_sharding"):
            raise self.values.level_fault("the module is not legalized", var, value)
        if kind == "view":
            source, values = value.args[0], self.values
            meshes = source.ty.device_mesh, value.attrs["device_mesh"]
            moved = moved_terms(values.terms_of(source, 0), *meshes)
            values.bind(var, values.local(source), [moved], values.zero_of(source, 0))
        elif kind in ("send", "recv"):
            self.moves.transfer(var, value, kind)
        elif kind is not None:
            self.moves.collective(var, value, kind)
        elif name == REPLICA_TO_SHARD:
            attrs = {
                "device_mesh": var.ty.device_mesh,
                "mesh_axis": 0,
                "dim": int(value.attrs.axis),
            }
            self.moves.move(var, value, "local_slice", attrs)
        elif type(op) is ir.GlobalVar:
            self._function_call(var, value)
        elif is_packed_call(value):
            local = self.values.builder.normalize(packed_call(self.values, var, value))
            self.values.bind(var, local, [], False)
        elif type(op) is ir.Op:
            self.op_calls.lower(var, value, like)
        elif is_call:
            problem = "its effect on shards is unknown"
            remedy = "Call a Relax op or a PrimFunc instead."
            raise self.values.fault("DIST0506", problem, var, value, remedy)
        elif type(value) is relax.TupleGetItem:
            numbers = self._leaves.of(value)
            terms = [self.values.terms_of(value.tuple_value, i) for i in numbers]
            zero = all(self.values.zero_of(value.tuple_value, i) for i in numbers)
            local = relax.TupleGetItem(self.values.local(value.tuple_value), int(value.index))
            self.values.bind(var, self.values.builder.normalize(local), terms, zero)
        else:
            leaves = list(leaves_of(value)) if is_tensors(var.ty) else []
            terms = [self.values.terms_of(e, n) for e, n, _ in leaves]
            local = self.values.local(value)
            for i, (e, n, _) in enumerate(leaves):
                if self.values.zero_of(e, n):
                    self.values.zero[(var, i)] = True
            self.values.bind(var, local, terms, False)

    def _function_call(self, var: relax.Var, value: ir.Call) -> None:
        values = self.values
        callee = values.context.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        at, arguments = 0, value.args[:]
        for arg in arguments if params or values.terms else ():
            for expr, number, _ in leaves_of(arg) if is_tensors(arg.ty) else ():
                if axes_of(values.terms_of(expr, number)) != params.get(at, ()):
                    raise values.level_fault(
                        f"argument {at} is partial along "
                        f"{list(axes_of(values.terms_of(expr, number)))}, the callee expects "
                        f"{list(params.get(at, ()))}",
                        var,
                        value,
                    )
                at += 1
        args = [values.local(a) for a in arguments]
        call = values.builder.normalize(rebuild(value, values.context.callees[value.op], args))
        terms = [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))]
        values.bind(var, call, terms, False)
