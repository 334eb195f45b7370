# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize calls from level 3 to level 4 and make their reductions explicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.operators.names import REDUCTIONS
from tvm_distir.core.ir.operators.ops import call_axes
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.ops.class_memo import class_memo
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.partial import call_sharding, carried
from tvm_distir.core.ops.terms import (
    CallSharding,
    Terms,
    attribute_axes,
    axes_of,
    moved_terms,
    sums,
    within,
    without,
)
from tvm_distir.core.rewriting.calls import (
    is_tensors,
    leaves_of,
    location_of,
    rebuild,
    rebuilt,
    tuple_of,
    typed,
)
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.support import GenericConst, LevelError

from .moves import Moves
from .partial_values import ITEM, USE, LegalizedValues


class CallLegalizer:
    """A writer of the calls of a function.

    Parameters
    ----------
    mod : IRModule
        The module, at level 3.
    values : LegalizedValues
        The values of the function.
    moves : Moves
        The moves of the same values.
    """

    def __init__(self, mod: ir.IRModule, values: LegalizedValues, moves: Moves) -> None:
        self.mod, self.values, self.moves = mod, values, moves
        self._shardings = class_memo("forms")

    def creation(self, var: relax.Var, value: ir.Call) -> None:
        """Write a call that has no tensors, or makes no DTensor."""
        self.values.bind(var, substitute(value, self.values.env))

    def collective(self, var: relax.Var, value: ir.Call, kind: str) -> None:
        """Copy an explicit collective of level 4."""
        values = self.values
        if not value.args:
            values.bind(var, value)
            return
        source = value.args[0]
        raw = values.env.get(source, source)
        if kind in REDUCTIONS and source in values.raw:
            raw = values.raw[source][0]
        axes = list(call_axes(value)) if kind in REDUCTIONS else []
        terms = values.terms_of(raw, 0)
        if not set(axes) <= set(axes_of(terms)):
            raise LevelError(
                "DIST0451",
                f"its operand is already reduced along the mesh axes {axes}: "
                "the module is already legalized, or it would be summed twice",
                location=location_of(values.name, var, value),
                remedy="Apply LegalizeRedistribute to a module at level 3.",
            )
        terms = without(terms, axes)
        if kind == "view":
            terms = moved_terms(terms, raw.ty.device_mesh, value.attrs["device_mesh"])
        values.bind(var, rebuild(value, value.op, [raw], value.ty), [terms])

    def function_call(self, var: relax.Var, value: ir.Call) -> None:
        """Write a call of a function, with arguments reduced as its boundary requires."""
        values, callee = self.values, self.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        if not (params or results or values.terms):
            values.bind(var, substitute(value, values.env))
            return
        args: list[Any] = []
        at = 0
        for arg in value.args[:]:
            arg = substitute(arg, values.env)
            if not is_tensors(arg.ty):
                args.append(arg)
                continue
            count = len(list(leaves_of(arg)))
            mesh = self._mesh_of(flat_types(callee.params[len(args)].ty))
            args.append(values.demand(arg, [params.get(at + i, ()) for i in range(count)], mesh))
            at += count
        new = rebuilt(value, values.env.get(value.op, value.op), args)
        values.bind(var, new, [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))])

    @staticmethod
    def _mesh_of(leaves: Sequence[ir.Type]) -> DeviceMesh:
        return next((t.device_mesh for t in leaves if isinstance(t, DTensorType)), None)

    def packed_call(self, var: relax.Var, value: ir.Call) -> None:
        """Write a call of a packed function, with reduced tensors."""
        args = [self._finished(substitute(arg, self.values.env)) for arg in value.args]
        self.values.bind(var, rebuilt(value, value.op, args))

    def _finished(self, arg: ir.Expr) -> Any:
        """Return an argument with reduced tensors; shapes and objects stay."""
        if is_tensors(arg.ty):
            return self.values.demand(arg, [()] * len(list(leaves_of(arg))))
        if isinstance(arg, relax.Tuple):
            return tuple_of([self._finished(field) for field in arg.fields])
        return arg

    def op_call(self, var: relax.Var, value: ir.Call, like: int) -> None:
        """Write a call of an op, after reducing partial operands that it cannot accept.

        ``like`` is the class of the call.
        """
        values, outs = self.values, flat_types(var.ty)
        if not any(isinstance(t, DTensorType) for t in outs):
            self.creation(var, value)
            return
        sharding: CallSharding = self._shardings.of(
            like, lambda: call_sharding(value, outs, self.mod, values.name, var)
        )
        old = value.args[:]
        skip = 1 if type(old[0]) is ir.GlobalVar else 0
        args = [substitute(a, values.env) for a in old]
        tensors = [i for i in range(skip, len(args)) if is_tensors(args[i].ty)]
        operands = [x for i in tensors for x in leaves_of(args[i])]
        have = [values.terms_of(e, n) for e, n, _ in operands]
        handed: Terms = ()
        if any(have):
            rule = sharding.rule or rule_of(value, self.mod)
            constants = [i for i, (e, _, _) in enumerate(operands) if type(e) is GenericConst]
            handed, needed = carried(rule, have, constants, sharding)
            mesh = outs[0].device_mesh
            at = 0
            for i in tensors:
                count = len(list(leaves_of(args[i])))
                partial_axes = []
                for j in range(at, at + count):
                    pending = axes_of(within(have[j], axes_of(handed)))
                    partial_axes.append(tuple(sorted((*pending, *needed.get(j, ())))))
                args[i] = values.demand(args[i], partial_axes, mesh)
                at += count
        new = rebuilt(value, value.op, args)
        if not sharding.terms:
            values.bind(var, new, [handed] * len(outs))
            return
        self._reducing(var, new, sharding, handed, outs)

    def _reducing(
        self,
        var: relax.Var,
        call: ir.Call,
        sharding: CallSharding,
        handed: Terms,
        outs: Sequence[ir.Type],
    ) -> None:
        """Bind a reducing call and complete it for all but its wraps."""
        values, added = self.values, sharding.terms
        reads = values.reads.get(var, 0)
        terms = tuple(sorted((*added, *handed)))
        fields = isinstance(var.ty, relax.TupleType) and reads == ITEM
        if reads and not reads & (USE | ITEM):
            values.raw[var] = (values.bind(var, call, [terms]), axes_of(added))
            return
        local = type(var) is relax.DataflowVar and values.writer.dataflow
        raw = (relax.DataflowVar if local else relax.Var)(f"{var.name}_terms", var.ty)
        values.writer.bind(raw, call)
        for i in range(len(outs)):
            values.terms[(raw, i)] = tuple(sorted((*sharding.result_terms(i), *handed)))
        if fields:  # each reader completes its field
            values.env[var] = raw
            return
        if len(outs) == 1 and not isinstance(var.ty, relax.TupleType):
            values.raw[var] = (raw, axes_of(added))
            mesh, value = outs[0].device_mesh, raw
            groups = [
                (op, [a for a, o in added if o == op]) for op in sorted({o for _, o in added})
            ]
            for op, axes in groups[:-1]:
                reduced = self.moves.calls.all_reduce(value, mesh, axes, op)
                value = values.writer.add(reduced, f"{var.name}_terms")
            op, axes = groups[-1]
            values.bind(var, self.moves.calls.all_reduce(value, mesh, axes, op), [handed])
            return
        leaves = [values.complete(raw, i, axes_of(handed), var.name) for i in range(len(outs))]
        values.bind(var, typed(relax.Tuple(leaves), var.ty), [handed] * len(outs))
