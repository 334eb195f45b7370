# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite the collectives of Disco workers, ``R.ccl``, to those of a mesh."""

from __future__ import annotations

import math

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.attributes.keys import WORKER_INDEX_ATTR
from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.support import ModelError

from .calls import location_of
from .functions import with_functions
from .replacing import Replacements, replaced_calls
from .scopes import all_bindings

_CCL = "relax.ccl."
_REDUCTIONS = ("sum", "prod", "min", "max")


def with_mesh_collectives(mod: ir.IRModule, mesh: DeviceMesh, groups: int) -> ir.IRModule:
    """Return a module with the collectives of a mesh for those of its workers.

    What worker 0 broadcasts is replicated already.

    Parameters
    ----------
    mod : IRModule
    mesh : DeviceMesh
    groups : int
        The number of groups of workers, of which each is a range along the last axes.

    Raises
    ------
    ModelError
        DIST0343 for a collective that ``R.dist`` does not have.
    """
    translator = _WorkerCollectives(mesh, groups)
    for gv, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            translator.check(
                binding.value, location_of(str(gv.name_hint), binding.var, binding.value)
            )
    functions = {
        gv: translator.index_function(fn) if fn.attrs and WORKER_INDEX_ATTR in fn.attrs else fn
        for gv, fn in mod.functions.items()
    }
    return replaced_calls(with_functions(mod, functions), translator.table())


class _WorkerCollectives:
    """A translator of the collectives of workers to those of a mesh."""

    def __init__(self, mesh: DeviceMesh, groups: int) -> None:
        self.mesh, sizes = mesh, mesh_shape(mesh)
        self.all_axes = [a for a, n in enumerate(sizes) if n > 1] or [0]
        self.count = math.prod(sizes)
        inner = range(len(sizes), -1, -1)
        first = next(a for a in inner if math.prod(sizes[a:]) == self.count // groups)
        self.inner_axes = [a for a in self.all_axes if a >= first] or [len(sizes) - 1]
        self.sizes, self.group = sizes, self.count // groups

    def check(self, call: ir.Expr, location: str) -> None:
        """Refuse a collective that has no form on the mesh."""
        name = str(call.op.name) if isinstance(call, ir.Call) and isinstance(call.op, ir.Op) else ""
        if not name.startswith(_CCL):
            return
        kind, attrs = name.removeprefix(_CCL), call.attrs
        if kind == "allreduce" and str(attrs.op_type) in _REDUCTIONS:
            return
        if kind == "allgather" and int(attrs.num_workers) == self._workers(call):
            return
        if kind == "scatter_from_worker0" and int(attrs.num_workers) == self.count:
            return
        if kind == "broadcast_from_worker0":
            return
        raise ModelError(
            "DIST0343",
            f"{kind} with {attrs} has no form on {self.count} devices",
            location=location,
            remedy="Give the number of devices that the module was written for; reductions are "
            f"{', '.join(_REDUCTIONS)}.",
        )

    def _workers(self, call: ir.Call) -> int:
        return self.group if bool(call.attrs.in_group) else self.count

    def _axes(self, call: ir.Call) -> list[int]:
        return self.inner_axes if bool(call.attrs.in_group) else self.all_axes

    def table(self) -> Replacements:
        """Return what replaces each collective."""
        mesh = self.mesh
        table: Replacements = {
            "broadcast_from_worker0": lambda _, call: call.args[0],
            "allreduce": lambda _, call: ops.all_reduce(
                call.args[0], mesh, self._axes(call), str(call.attrs.op_type)
            ),
            "allgather": lambda _, call: ops.all_gather(call.args[0], mesh, self._axes(call), 0),
            "scatter_from_worker0": lambda _, call: ops.local_slice(
                call.args[0], mesh, self.all_axes, int(call.attrs.axis)
            ),
        }
        return {_CCL + kind: write for kind, write in table.items()}

    def index_function(self, fn: relax.Function) -> relax.Function:
        """Return the function that computes a worker's position from its mesh coordinates."""
        builder = relax.BlockBuilder()
        with builder.function("index", [], private=True):
            axes = [int(a) for a in fn.attrs[WORKER_INDEX_ATTR]]
            position = builder.emit(ops.axis_index(self.mesh, axes[0]))
            for a in axes[1:]:
                size = relax.const(self.sizes[a], "int64")
                major = builder.emit(relax.op.multiply(position, size))
                minor = builder.emit(ops.axis_index(self.mesh, a))
                position = builder.emit(relax.op.add(major, minor))
            builder.emit_func_output(position)
        return builder.get()["index"]
