# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Infer which values are partial sums at levels 3 and 4, and check that all are reduced.

At level 3 a reducing call is complete unless its result is wrapped in ``R.dist.partial``; at
level 4 it is partial until a collective reduces it.
"""

from __future__ import annotations

import itertools

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.arrays import unpack
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
from tvm_distir.core.ops.terms import attribute_axes
from tvm_distir.core.rewriting.native.function_index import (
    FUNCTION_CALL,
    OP_CALL,
    FunctionView,
    read_functions,
)
from tvm_distir.support import LevelError

Axes = frozenset[int]
NONE: Axes = frozenset()
_PARTIAL = "relax.dist.partial"


class PartialState:
    """Partial sums of a function.

    Attributes
    ----------
    state : mapping of int to list of axes
        The partial axes per leaf of variables, by their handles; none of what it does not hold.
    """

    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function, *, legalized: bool) -> None:
        self.mod, self.name, self.fn, self.legalized = mod, name, fn, legalized
        self.state: dict[int, list[Axes]] = {}
        self._leaves = FieldLeaves(value_types)
        self._tables: dict[tuple[int, str], dict[int, Axes]] = {}
        if table := self._declared(fn, "params"):
            numbers = itertools.count()
            for p in fn.params[:]:
                axes = [table.get(next(numbers), NONE) for _ in value_types(p.ty)]
                self.state[handle(p)] = axes

    def _declared(self, fn: relax.Function, side: str) -> dict[int, Axes]:
        """Return the axes along which some flat parameters or results are declared partial."""
        key = handle(fn), side
        if key not in self._tables:
            table = attribute_axes(fn, side).items()
            self._tables[key] = {number: frozenset(axes) for number, axes in table if axes}
        return self._tables[key]

    def error(self, where: str, problem: str) -> LevelError:
        """Return the error at a binding."""
        remedy = "Reduce it with a redistribute (level 3) or a reduction (level 4)."
        return LevelError("DIST0452", problem, location=f"{self.name}/{where}", remedy=remedy)

    def of(self, expr: ir.Expr) -> list[Axes]:
        """Return the partial axes per leaf of an expression."""
        if isinstance(expr, relax.Tuple):
            return [axes for f in unpack(expr.fields) for axes in self.of(f)]
        if isinstance(expr, relax.TupleGetItem):
            full, leaves = self.of(expr.tuple_value), self._leaves.of(expr)
            return full[leaves.start : leaves.stop]
        return self.state.get(handle(expr)) or [NONE] * len(value_types(expr.ty))

    def check(self, reading: FunctionView | None = None, *, rules: bool = True) -> None:
        """Walk the bindings; the result must be as declared.

        Of equal bindings with the same partial operands only the first is checked.

        Parameters
        ----------
        reading : FunctionView, optional
            The view of the function, where it exists already.
        rules : bool
            Whether calls without partial sums are checked too, and the result. At level 3 no
            partial sum depends on that.
        """
        reading = read_functions([self.fn])[0] if reading is None else reading
        numbers: dict[tuple[Axes, ...], int] = {}  # of what a variable may have; 0 is nothing
        params = [tuple(self.state.get(handle(p), ())) for p in self.fn.params[:]]
        have = [numbers.setdefault(x, len(numbers) + 1) if any(x) else 0 for x in params]
        known: dict[tuple[int, ...], tuple[list[Axes], int]] = {}
        rows = zip(reading.kinds, reading.like, reading.uses, reading.values, reading.bindings)
        for kind, like, reads, value, b in rows:
            key = (like, *(have[n] if n >= 0 else -1 for n in reads))
            if not (rules or max(key[1:], default=0) > 0 or self._starts(kind, value)):
                have.append(0)
                continue
            entry = known.get(key) if like >= 0 else None
            if entry is None:
                axes = self._value(b)
                new = numbers.setdefault(tuple(axes), len(numbers) + 1) if any(axes) else 0
                entry = known[key] = axes, new
            self.state[handle(reading.variables[len(have)])] = entry[0]
            have.append(entry[1])
        if rules:
            self._result()

    def _starts(self, kind: int, value: ir.Expr) -> bool:
        """Return whether a binding starts a partial sum at level 3, whatever it reads."""
        if kind == FUNCTION_CALL:
            return bool(self._declared(self.mod[value.op], "results"))
        return kind == OP_CALL and str(value.op.name) == _PARTIAL

    def _result(self) -> None:
        have = self.of(self.fn.body.body)
        table = self._declared(self.fn, "results") if is_private(self.fn) else {}
        for i, axes in enumerate(have):
            want = table.get(i, NONE)
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
        table = self._declared(callee, "params")
        for i, axes in enumerate([axes for a in call.args for axes in self.of(a)]):
            want = table.get(i, NONE)
            if axes != want:
                raise self.error(
                    f"{where} ({call.op.name_hint})",
                    f"argument {i} is partial along mesh axes {sorted(axes)}, the function expects "
                    f"{sorted(want)}",
                )
        table = self._declared(callee, "results")
        return [table.get(i, NONE) for i in range(len(value_types(call.ty)))]

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
