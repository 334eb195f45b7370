# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Infer which values are partial sums at levels 3 and 4, and check that all are reduced.

At level 3 a reducing call is complete unless its result is wrapped in ``R.dist.partial``; at
level 4 it is partial until a collective reduces it.
"""

from __future__ import annotations

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.attributes.keys import PARTIAL_ATTR
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators.compute_ops import COMPUTE_OPS
from tvm_distir.core.ir.operators.ops import call_axes
from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.ir.types import FieldLeaves, is_private, value_types
from tvm_distir.core.ir.views.tilings import (
    moved_axes,
)
from tvm_distir.core.ops.call_view import call_view
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.match import match_factor
from tvm_distir.core.ops.packed import is_packed_call
from tvm_distir.core.rewriting.native.function_index import FunctionView, read_functions
from tvm_distir.support import LevelError

Axes = frozenset[int]
NONE: Axes = frozenset()


def declared(fn: relax.Function, kind: str, index: int) -> Axes:
    """Return the mesh axes along which a flat parameter or result is declared partial."""
    if not (fn.attrs and PARTIAL_ATTR in fn.attrs):
        return NONE
    table = fn.attrs[PARTIAL_ATTR][kind]
    return frozenset(int(a) for a in table[str(index)]) if str(index) in table else NONE


class PartialState:
    """Partial sums of a function."""

    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function, *, legalized: bool) -> None:
        self.mod, self.name, self.fn, self.legalized = mod, name, fn, legalized
        self.state: dict[ir.Expr, list[Axes]] = {}
        self._leaves = FieldLeaves(value_types)
        index = 0
        for p in fn.params[:]:
            leaves = value_types(p.ty)
            self.state[p] = [declared(fn, "params", index + i) for i in range(len(leaves))]
            index += len(leaves)

    def error(self, where: str, problem: str) -> LevelError:
        """Return the error at a binding."""
        remedy = "Reduce it with a redistribute (level 3) or a reduction (level 4)."
        return LevelError("DIST0452", problem, location=f"{self.name}/{where}", remedy=remedy)

    def of(self, expr: ir.Expr) -> list[Axes]:
        """Return the partial axes per leaf of an expression."""
        if isinstance(expr, relax.Tuple):
            return [axes for f in expr.fields[:] for axes in self.of(f)]
        if isinstance(expr, relax.TupleGetItem):
            full, leaves = self.of(expr.tuple_value), self._leaves.of(expr)
            return full[leaves.start : leaves.stop]
        if expr in self.state:
            return self.state[expr]
        return [NONE] * len(value_types(expr.ty))

    def check(self, reading: FunctionView | None = None) -> None:
        """Walk the bindings; the result must be as declared.

        Of equal bindings with the same partial operands only the first is checked. ``reading`` is
        the view of the function, where it exists already.
        """
        reading = read_functions([self.fn])[0] if reading is None else reading
        numbers: dict[tuple[Axes, ...], int] = {}  # of what a variable may have
        have = [numbers.setdefault(tuple(axes), len(numbers)) for axes in self.state.values()]
        known: dict[tuple[int, ...], tuple[list[Axes], int]] = {}
        for i, (like, b) in enumerate(zip(reading.like, reading.bindings, strict=True)):
            key = (like, *(have[n] if n >= 0 else -1 for n in reading.used(i)))
            entry = known.get(key) if like >= 0 else None
            if entry is None:
                axes = self._value(b)
                entry = known[key] = axes, numbers.setdefault(tuple(axes), len(numbers))
            self.state[reading.variables[len(have)]] = entry[0]
            have.append(entry[1])
        self._result()

    def _result(self) -> None:
        for i, axes in enumerate(self.of(self.fn.body.body)):
            want = declared(self.fn, "results", i) if is_private(self.fn) else NONE
            if axes != want:
                problem = f"partial along mesh axes {sorted(axes)}, declared {sorted(want)}"
                raise self.error(f"result {i}", problem)

    def _value(self, b: relax.Binding) -> list[Axes]:
        value, where = b.value, b.var.name
        if not isinstance(value, ir.Call):
            return self.of(value)
        if isinstance(value.op, ir.GlobalVar):
            return self._call(where, value)
        if not isinstance(value.op, ir.Op) or is_packed_call(value):
            return [NONE] * len(value_types(b.var.ty))
        name = str(value.op.name)
        moves = name.startswith("relax.dist.") and name not in COMPUTE_OPS
        if moves and name != "relax.dist.call_tir_local_view":
            return self._dist(where, name.removeprefix("relax.dist."), value)
        return self._op(where, name, value, b.var.ty)

    def _call(self, where: str, call: ir.Call) -> list[Axes]:
        callee = self.mod[call.op]
        for i, axes in enumerate([axes for a in call.args for axes in self.of(a)]):
            want = declared(callee, "params", i)
            if axes != want:
                raise self.error(
                    f"{where} ({call.op.name_hint})",
                    f"argument {i} is partial along mesh axes {sorted(axes)}, the function expects "
                    f"{sorted(want)}",
                )
        return [declared(callee, "results", i) for i in range(len(value_types(call.ty)))]

    def _dist(self, where: str, short: str, call: ir.Call) -> list[Axes]:
        have = self.of(call.args[0])[0] if len(call.args) else NONE
        if short == "partial":
            named = frozenset(int(a) for a in call.attrs["mesh_axes"])
            return [have | named if self.legalized else named]
        if short in ("redistribute", "recv"):
            return [NONE]
        if short in ("all_reduce", "reduce_scatter"):
            axes = frozenset(call_axes(call))
            if str(call.attrs["op"]) == "sum" and not axes <= have:
                raise self.error(
                    f"{where} ({short})",
                    f"a reduction along mesh axes {sorted(axes)} of a value partial along "
                    f"{sorted(have)}",
                )
            return [have - axes]
        if short == "view":
            return [moved_axes(have, call.args[0].ty.device_mesh, call.attrs["device_mesh"])]
        if short == "send" and have:
            raise self.error(f"{where} (send)", "a partial sum is sent to another mesh")
        return [have]

    def _op(self, where: str, name: str, call: ir.Call, out: ir.Type) -> list[Axes]:
        rule = rule_of(call, self.mod, out)
        pending = [axes for a in call.args if value_types(a.ty) for axes in self.of(a)]
        types = [t for a in call.args for t in value_types(a.ty)]
        results = value_types(out)
        location = f"{self.name}/{where} ({name.removeprefix('relax.')})"
        placed = [t for t in (*results, *types) if _placed(t)]
        if not any(_placed(t) for t in results):
            return [NONE] * len(results)
        mesh, rows = call_view(placed, location)
        known = dict(zip(map(handle, placed), rows))
        pending = [
            moved_axes(axes, t.device_mesh, mesh) if axes and _placed(t) else axes
            for axes, t in zip(pending, types)
        ]
        left: list[list[int]] = [[] for _ in results]
        for axis in range(len(mesh_shape(mesh))):
            ins = [
                P if axis in axes else known[handle(t)][axis] if _placed(t) else None
                for axes, t in zip(pending, types)
            ]
            outs = [known[handle(t)][axis] if _placed(t) else R for t in results]
            factor = match_factor(rule, ins, outs, location)
            carried = P in ins
            for i, axes in enumerate(left):
                starts = factor is not None and rule.factors[factor].leaves_terms(i)
                if carried or (starts and self.legalized):
                    axes.append(axis)
        return [
            moved_axes(axes, mesh, t.device_mesh) if axes and _placed(t) else frozenset(axes)
            for axes, t in zip(left, results)
        ]


def _placed(ty: ir.Type) -> bool:
    return isinstance(ty, DTensorType)
