# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Relocate functions of stages to the meshes of their ranks, copying those that communicate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tvm import ir, relax
from tvm.relax import Expr
from tvm.relax.distributed import DeviceMesh
from tvm.relax.utils import copy_with_new_vars

from tvm_distir.core.ir import (
    is_private,
    relax_functions,
    same_mesh,
)
from tvm_distir.core.ir.operators import dist_op_name
from tvm_distir.core.ir.views import (
    are_views,
    order_of,
    view_of,
)
from tvm_distir.core.rewriting import (
    all_bindings,
    callers_closure,
    location_of,
    make_call,
    substitute,
    typed,
    with_values,
)
from tvm_distir.support import LoweringError

from .sums import ContinuedAccumulation

_MESH = "device_mesh"


class RelocatedFunctions:
    """Functions of a module on other meshes of the same shapes.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    known : sequence of DeviceMesh
        The meshes of the module.
    of_rank : sequence of int
        The number of the mesh for which each rank's functions are written.
    target_meshes : sequence of DeviceMesh
        The mesh of each rank.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        known: Sequence[DeviceMesh],
        of_rank: Sequence[int],
        target_meshes: Sequence[DeviceMesh],
    ) -> None:
        self.mod, self.target_meshes = mod, target_meshes
        self.source = [known[number] for number in of_rank]
        communicating = {
            str(gv.name_hint)
            for gv, fn in relax_functions(mod)
            if any(_has_mesh(b.value) for b in all_bindings(fn.body))
        }
        self._check_meshes(communicating)
        self.moving = callers_closure(mod, communicating)
        self.known = {str(gv.name_hint): (gv, fn) for gv, fn in mod.functions.items()}
        self._modules: dict[int, ir.IRModule] = {}
        self._sums = ContinuedAccumulation()

    def _check_meshes(self, names: Collection[str]) -> None:
        """Refuse collectives on a mesh that is no view of the mesh of a stage."""
        for name in sorted(names):
            for binding in all_bindings(self.mod[name].body):
                value = binding.value
                if _has_mesh(value) and not any(
                    are_views(value.attrs[_MESH], mesh) for mesh in self.source
                ):
                    raise LoweringError(
                        "DIST0512",
                        "a collective works on a mesh of no stage",
                        location=location_of(name, binding.var, value),
                        remedy="Place the values of a pipelined step on the meshes of its stages.",
                    )

    def module(self, rank: int) -> ir.IRModule:
        """Return the module of the functions of a rank."""
        if rank not in self._modules:
            if same_mesh(self.target_meshes[rank], self.source[rank]):
                self._modules[rank] = self.mod
            else:
                self._modules[rank] = self._moved(rank)
        return self._modules[rank]

    def _moved(self, rank: int) -> ir.IRModule:
        moving = [self.known[name] for name in self.known if name in self.moving]
        env = {
            gv: typed(ir.GlobalVar(f"{gv.name_hint}_mesh{rank}"), gv.ty) if is_private(fn) else gv
            for gv, fn in moving
        }
        functions = {gv: fn for name, (gv, fn) in self.known.items() if name not in self.moving}
        ends = self.source[rank], self.target_meshes[rank]
        functions.update((env[gv], _on(ends, fn, env)) for gv, fn in moving)
        return ir.IRModule(functions, global_infos=self.mod.global_infos)

    def going_on(self, gv: ir.GlobalVar, rank: int) -> ir.GlobalVar:
        """Return the function that continues the sums that another function starts."""
        return self._sums.of(self.module(rank), gv)

    def functions(self) -> Mapping[ir.GlobalVar, relax.Function]:
        """Return all private functions of all ranks, and kernels."""
        functions: dict[str, tuple[ir.GlobalVar, ir.BaseFunc]] = dict(self._sums.functions)
        for rank in sorted(self._modules):
            for gv, fn in self._modules[rank].functions.items():
                if not isinstance(fn, relax.Function) or is_private(fn):
                    functions.setdefault(str(gv.name_hint), (gv, fn))
        return {gv: fn for _, (gv, fn) in sorted(functions.items())}


def _has_mesh(value: Expr) -> bool:
    return dist_op_name(value) is not None and value.attrs is not None and _MESH in value.attrs


def _on(
    ends: tuple[DeviceMesh, DeviceMesh],
    fn: relax.Function,
    env: Mapping[ir.GlobalVar, ir.GlobalVar],
) -> relax.Function:
    """Return a function whose collectives run on the second of two meshes, or on its views."""
    return with_values(copy_with_new_vars(fn), lambda _, value: _moved(value, ends, env))


def _moved(
    value: Expr,
    ends: tuple[DeviceMesh, DeviceMesh],
    env: Mapping[ir.GlobalVar, ir.GlobalVar],
) -> Expr:
    value = substitute(value, env)
    if not _has_mesh(value):
        return value
    attrs = {str(k): v for k, v in value.attrs.items()}
    source, mesh = ends
    if are_views(attrs[_MESH], source):
        mesh = view_of(mesh, order_of(attrs[_MESH], source))
    attrs[_MESH] = mesh
    nodes = ir.make_node("ir.DictAttrs", **attrs)
    return make_call(value.op, list(value.args), nodes, value.ty_args, value.ty, value.span)
