# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize the data movement of a function: redistributions, transfers and partial sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.ir import Call
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.mesh import mesh_key, same_mesh
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import Labels, P, labels_of, placement_text
from tvm_distir.core.ir.types import known_shape, static_shape
from tvm_distir.core.ir.views.module_views import ModuleViews
from tvm_distir.core.ir.views.tilings import (
    family,
    mesh_of,
    moved_axes,
    tiling,
)
from tvm_distir.core.ops.call_view import is_transfer, view_of_ends
from tvm_distir.core.ops.dims import nominal
from tvm_distir.core.ops.terms import Terms, axes_of, moved_terms, sums
from tvm_distir.core.redistribution.planner import Planner
from tvm_distir.core.redistribution.steps import Step
from tvm_distir.core.redistribution.transition import Redistribution
from tvm_distir.core.redistribution.view_search import ViewTransition
from tvm_distir.core.rewriting.dims import dims_remedy, open_dims
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.support import GenericConst, LoweringError

from .collective_calls import TypedCalls
from .partial_values import WRAP, LegalizedValues, TransferTags


@dataclass(eq=False)
class Moves:
    """The redistribution of values of a function.

    Attributes
    ----------
    values : LegalizedValues
    planner : Planner
        Finds the steps of redistributions.
    tags : TransferTags
        Numbers for transfers.
    calls : TypedCalls
        The typed calls of the module.
    views : ModuleViews
        The meshes of the module.
    """

    values: LegalizedValues
    planner: Planner
    tags: TransferTags
    calls: TypedCalls
    views: ModuleViews

    def wrap(self, var: relax.Var, value: Call) -> None:
        """Legalize ``R.dist.partial``: keep partial sums and make reduced values partial."""
        values = self.values
        axes = tuple(sorted(int(a) for a in value.attrs["mesh_axes"]))
        op = str(value.attrs["op"])
        source = value.args[0]
        if source in values.sources:
            if op != "sum":
                problem = f'a redistribute cannot produce partial results of "{op}"'
                raise values.fault("DIST0504", problem, var, value, "Use the op sum.")
            self._move(var, values.sources[source], axes)
            return
        if isinstance(source, GenericConst):
            values.bind(var, value, [tuple((a, op) for a in axes)])
            return
        if source in values.raw:
            raw, added = values.raw[source]
            # Of the call's reductions those that are not named are completed here.
            pending = [a for a in axes_of(values.terms_of(raw, 0)) if a in axes or a not in added]
            leaf = values.complete(raw, 0, pending, var.name)
        else:
            leaf = values.env.get(source, source)
        have = dict(values.terms_of(leaf, 0))
        if any(have[a] != op for a in axes if a in have):
            # Terms of another op are no terms of this op: the value is completed, then wrapped.
            leaf = values.complete(leaf, 0, [a for a in have if a not in axes], var.name)
            have = dict(values.terms_of(leaf, 0))
        missing = [a for a in axes if a not in have]
        if not missing:
            values.alias(var, leaf)
            return
        call = values.builder.normalize(ops.partial(leaf, leaf.ty.device_mesh, missing, op))
        terms = tuple(sorted((*have.items(), *((a, op) for a in missing))))
        values.bind(var, call, [terms])

    def redistribute(self, var: relax.Var, value: Call) -> None:
        """Legalize ``R.dist.redistribute`` to the steps between two placements."""
        values = self.values
        reads = values.reads.get(var, 0)
        if values.writer.dataflow and not isinstance(var, relax.DataflowVar):
            # Read outside its block too, where its operand may be out of sight.
            self._move(var, value, ())
            return
        values.sources[var] = value
        if reads != WRAP:
            self._move(var, value, ())

    def _move(self, var: relax.Var, value: Call, keep: Sequence[int]) -> None:
        """Bind ``var`` to the operand of a redistribute, moved; partial along ``keep``."""
        values = self.values
        source = substitute(value.args[0], values.env)
        name, mesh = var.name, value.attrs.device_mesh
        target = labels_of(value.attrs.placement)
        if not isinstance(source.ty, DTensorType):
            raise values.fault(
                "DIST0504", f"a redistribute of {source.ty}", var, value, "Pass a single DTensor."
            )
        if not same_mesh(source.ty.device_mesh, mesh):
            if is_transfer(value):
                self._transfer(var, source, mesh, target, keep)
            else:
                self._between_views(var, value, source, keep)
            return
        source, terms = self._summed(source, keep, name)
        before = self._with_partial(labels_of(source.ty.placement), axes_of(terms))
        after = self._with_partial(target, keep)
        if before == after:
            values.alias(var, source)
            return
        shape = known_shape(source.ty) or self._sample_shape(source, var, value, mesh)
        at, op = before, terms[0][1] if terms else "sum"
        *steps, final = self._plan(source, shape, before, after, mesh, var, value)
        for step in steps:
            source = values.writer.add(self.calls.step(source, mesh, step, at, shape, op), name)
            at = step.after
        values.bind(var, self.calls.step(source, mesh, final, at, shape, op), [sums(keep)])

    def _summed(self, source: ir.Expr, keep: Sequence[int], name: str) -> tuple[Any, Terms]:
        """Return a source whose terms have one op, and its terms.

        Only a sum can stay unfinished; of several reductions all but the sums end first.
        """
        values = self.values
        terms = values.terms_of(source, 0)
        if keep or len({op for _, op in terms}) > 1:
            source = values.complete(source, 0, [a for a, op in terms if op == "sum"], name)
            terms = values.terms_of(source, 0)
        return source, terms

    def _between_views(
        self, var: relax.Var, value: Call, source: ir.Expr, keep: Sequence[int]
    ) -> None:
        """Bind ``var`` to a source, moved to another view of its mesh; partial along ``keep``."""
        values, name, mesh = self.values, var.name, value.attrs.device_mesh
        source, terms = self._summed(source, keep, name)
        shape = known_shape(source.ty) or self._sample_shape(source, var, value, mesh)
        have, want = family(source.ty.device_mesh), family(mesh)
        before = self._with_partial(labels_of(source.ty.placement), axes_of(terms))
        after = self._with_partial(labels_of(value.attrs.placement), keep)
        common = view_of_ends(source.ty, value)
        preferred = [m for m in (source.ty.device_mesh, mesh, common) if m is not None]
        request = ViewTransition(
            shape,
            str(source.ty.tensor_ty.dtype),
            tiling(have, before, len(shape)),
            tiling(want, after, len(shape)),
            have.family,
            self.views.orders(*preferred),
        )
        op = terms[0][1] if terms else "sum"
        for step in self._steps(source, var, value, lambda p: p.plan_views(request)):
            view = self.views.declared(mesh_of(have.family, step.view))
            source = self._on_view(source, view, name)
            call = self.calls.step(source, view, step, step.before, shape, op)
            source = values.writer.add(call, name)
        values.terms[(source, 0)] = sums(sorted(moved_axes(keep, mesh, source.ty.device_mesh)))
        values.alias(var, self._on_view(source, mesh, name))

    def _on_view(self, source: ir.Expr, mesh: DeviceMesh, name: str) -> ir.Expr:
        """Return a value on a view of its mesh."""
        values, have = self.values, source.ty.device_mesh
        if same_mesh(have, mesh):
            return source
        viewed = values.writer.emit(ops.view(source, mesh), name)
        values.terms[(viewed, 0)] = moved_terms(values.terms_of(source, 0), have, mesh)
        return viewed

    def _plan(
        self,
        source: ir.Expr,
        shape: tuple[int, ...],
        before: Labels,
        after: Labels,
        mesh: DeviceMesh,
        var: relax.Var,
        value: ir.Expr,
    ) -> tuple[Step, ...]:
        sizes, devices = mesh_key(mesh)
        ends = shape, before, after, sizes, str(source.ty.tensor_ty.dtype), devices
        return self._steps(source, var, value, lambda planner: planner.plan(*ends))

    def _steps(
        self,
        source: ir.Expr,
        var: relax.Var,
        value: ir.Expr,
        plan: Callable[[Planner], Redistribution],
    ) -> tuple[Any, ...]:
        """Return the steps of a plan; errors name the binding."""
        planner = self.planner
        if known_shape(source.ty) is None:
            planner = planner.without("exchange")
        try:
            return plan(planner).steps
        except LoweringError as error:
            raise self.values.fault(error.code, error.what, var, value, error.remedy) from error

    def _sample_shape(
        self, source: ir.Expr, var: relax.Var, value: Any, mesh: DeviceMesh
    ) -> tuple[int, ...]:
        """Return a shape of the type of a source, whose dims all mesh axes divide."""
        shape = static_shape(source.ty)
        if shape is None:
            return self._static(source, var, value)
        count = math.prod(mesh_key(mesh)[0])
        return tuple(n if isinstance(n, int) else nominal(n) * count for n in shape)

    def _static(self, source: ir.Expr, var: relax.Var, value: ir.Expr) -> tuple[int, ...]:
        shape = known_shape(source.ty)
        if shape is None:
            dims = ", ".join(str(n) for n in static_shape(source.ty) or ("?",))
            remedy = dims_remedy([dim.name for dim in open_dims(self.values.builder.get())])
            problem = f"the shape ({dims}) is not constant"
            raise self.values.fault("DIST0502", problem, var, value, remedy)
        return shape

    @staticmethod
    def _with_partial(labels: Labels, axes: Sequence[int]) -> Labels:
        return tuple(P if a in axes else x for a, x in enumerate(labels))

    def _transfer(
        self, var: relax.Var, source: ir.Expr, mesh: DeviceMesh, target: Labels, keep: Sequence[int]
    ) -> None:
        """Send on the source mesh and receive on the target mesh, after reducing partial sums."""
        values = self.values
        name = var.name
        source = values.complete(source, 0, (), name)
        ty = source.ty
        shape = self._static(source, var, ir.Call(ir.Op.get("relax.dist.redistribute"), [source]))
        placement, peer = placement_text(labels_of(ty.placement)), placement_text(target)
        tag = self.tags.take()
        sent = values.writer.emit(
            ops.send(source, ty.device_mesh, mesh, placement, peer, shape, tag), f"{name}_sent"
        )
        ends = {"placement": peer, "peer_placement": placement, "shape": shape}
        meshes = {"device_mesh": mesh, "peer_mesh": ty.device_mesh}
        received = ops.recv(sent, **meshes, **ends, dtype=ty.tensor_ty.dtype, tag=tag)
        arrival = values.builder.normalize(received)
        if not keep:
            values.bind(var, arrival)
            return
        got = values.writer.emit(arrival, name)
        call = values.builder.normalize(ops.partial(got, mesh, sorted(keep), "sum"))
        values.bind(var, call, [sums(keep)])
