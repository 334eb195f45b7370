# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give each call of a module a single view of its mesh.

At level 3 a call may read tensors on several views. It works on one of them, on which all its
placements can be stated; ``R.dist.view`` names the tensors of the others by its axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.analysis.levels import has_dtensor
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.mesh import MeshKey, mesh_key, meshes, same_mesh
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.operators.compute_ops import COMPUTE_OPS
from tvm_distir.core.ir.placement import labels_of
from tvm_distir.core.ir.types import as_dtensor, flat_types, relax_functions
from tvm_distir.core.ir.views.module_views import ModuleViews
from tvm_distir.core.ir.views.tilings import has_views, relabelled
from tvm_distir.core.ops.call_view import call_view
from tvm_distir.core.rewriting.calls import (
    called_name,
    field_of,
    leaves_of,
    location_of,
    tensor_args,
    tuple_of,
)
from tvm_distir.core.rewriting.nodes import make_call
from tvm_distir.core.rewriting.writer import BlockWriter, with_body
from tvm_distir.support import GenericConst


def with_call_views(mod: ir.IRModule) -> ir.IRModule:
    """Return the module at level 3 with calls whose tensors are on a single view each.

    Raises
    ------
    PropagationError
        DIST0405 where the placements of a call have mesh axes in opposite orders.
    """
    if not has_views(meshes(mod)):
        return mod
    views = ModuleViews(mod)
    builder, functions = relax.BlockBuilder(mod), dict(mod.functions.items())
    for gv, fn in relax_functions(mod):
        if has_dtensor(fn):
            functions[gv] = _Rewriter(views, builder, str(gv.name_hint)).run(fn)
    return views.module(functions)


def _on_views(call: Any) -> list[DTensorType]:
    """Return the types of the tensors of a call where they are on several views of a mesh."""
    if type(call) is not ir.Call or type(call.op) is ir.GlobalVar:
        return []
    name = called_name(call)
    if name.startswith("relax.dist.") and name not in COMPUTE_OPS:
        return []
    types = [*flat_types(call.ty), *(ty for a in tensor_args(call) for _, _, ty in leaves_of(a))]
    placed = [ty for ty in types if isinstance(ty, DTensorType)]
    return placed if len({mesh_key(ty.device_mesh) for ty in placed}) > 1 else []


class _Rewriter:
    """A rewriter of a function."""

    def __init__(self, views: ModuleViews, builder: relax.BlockBuilder, name: str) -> None:
        self.views, self.builder, self.name = views, builder, name
        self.writer = BlockWriter(builder, False)
        self.written: dict[tuple[int, MeshKey], Any] = {}  # views by operand and mesh

    def run(self, fn: relax.Function) -> relax.Function:
        """Return the function with views, itself where it needs none."""
        rows = [
            (block, [(b, _on_views(b.value)) for b in block.bindings]) for block in fn.body.blocks
        ]
        if not any(placed for _, row in rows for _, placed in row):
            return fn
        blocks = []
        for block, row in rows:
            self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
            self.written.clear()
            for binding, placed in row:
                if placed:
                    self._call(binding.var, binding.value, placed)
                else:
                    self.writer.bindings.append(binding)
            blocks.append(self.writer.block())
        return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))

    def _call(self, var: relax.Var, call: ir.Call, placed: Sequence[DTensorType]) -> None:
        mesh, _ = call_view(placed, location_of(self.name, var, call))
        mesh = self.views.declared(mesh)
        tensors = {handle(arg) for arg in tensor_args(call)}
        args = [
            self._on(arg, _retyped(arg.ty, mesh)) if handle(arg) in tensors else arg
            for arg in call.args
        ]
        types, ty = [_retyped(t, mesh) for t in call.ty_args], _retyped(var.ty, mesh)
        new = make_call(call.op, args, call.attrs, types, ty, call.span)
        if _on_same_views(ty, var.ty):
            self.writer.bind(var, new)
            return
        self.writer.bind(var, self._on(self.writer.add(new, f"{var.name}_on_view"), var.ty))

    def _on(self, value: Any, ty: ir.Type) -> Any:
        """Return a value on the views of a type, which differs from its own in views alone."""
        if _on_same_views(value.ty, ty):
            return value
        if isinstance(ty, relax.TupleType):
            fields = [
                value.fields[i]
                if isinstance(value, relax.Tuple)
                else self.writer.add(field_of(value, i), value.name)
                for i in range(len(ty.fields))
            ]
            return tuple_of([self._on(x, t) for x, t in zip(fields, ty.fields, strict=True)])
        if isinstance(value, GenericConst):
            return GenericConst(value.value, ty)
        key = handle(value), mesh_key(ty.device_mesh)
        if key not in self.written:
            self.written[key] = self.writer.emit(ops.view(value, ty.device_mesh), value.name)
        return self.written[key]


def _on_same_views(ty: ir.Type, other: ir.Type) -> bool:
    pairs = zip(flat_types(ty), flat_types(other), strict=True)
    return all(
        same_mesh(x.device_mesh, y.device_mesh)
        for x, y in pairs
        if isinstance(x, DTensorType) and isinstance(y, DTensorType)
    )


def _retyped(ty: ir.Type, mesh: DeviceMesh) -> ir.Type:
    """Return a type with its tensors on a view of their mesh on which they can be stated."""
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_retyped(t, mesh) for t in ty.fields])
    if not isinstance(ty, DTensorType):
        return ty
    labels = relabelled(labels_of(ty.placement), ty.device_mesh, mesh, int(ty.tensor_ty.ndim))
    return ty if labels is None else as_dtensor(ty.tensor_ty, mesh, labels)
