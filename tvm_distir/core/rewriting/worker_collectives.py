# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite the collectives of Disco workers, ``R.ccl``, to those of a mesh."""

from __future__ import annotations

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators import ops
from tvm_distir.support import ModelError

_CCL = "relax.ccl."
_REDUCTIONS = ("sum", "prod", "min", "max")


def with_mesh_collectives(fn: relax.Function, mesh: DeviceMesh, function: str) -> relax.Function:
    """Return a function with the collectives of a mesh of one axis for those of its workers.

    What worker 0 broadcasts is replicated already.

    Parameters
    ----------
    fn : relax.Function
    mesh : DeviceMesh
    function : str
        The name of the function, for messages.

    Raises
    ------
    ModelError
        DIST0343 for a collective that ``R.dist`` does not have.
    """
    return _MeshCollectives(mesh, function).run(fn)


@relax.expr_functor.mutator
class _MeshCollectives(relax.PyExprMutator):  # type: ignore[misc]
    """A rewriter of collectives of workers to those of a mesh."""

    def __init__(self, mesh: DeviceMesh, function: str) -> None:
        super().__init__()
        self.mesh, self.size, self.function = mesh, mesh_shape(mesh)[0], function

    def run(self, fn: relax.Function) -> relax.Function:
        """Return the function with its collectives rewritten."""
        self.builder_.begin_scope(fn.params)
        body = self.visit_expr(fn.body)
        self.builder_.end_scope()
        return relax.Function(fn.params, body, None, fn.is_pure, fn.attrs)

    def visit_call_(self, call: ir.Call) -> ir.Expr:
        """Rewrite a call of ``R.ccl``."""
        call = self.visit_expr_post_order(call)
        name = str(call.op.name) if isinstance(call.op, ir.Op) else ""
        if not name.startswith(_CCL):
            return call
        kind, x = name.removeprefix(_CCL), call.args[0]
        if kind == "broadcast_from_worker0":
            return x
        if kind == "allreduce" and str(call.attrs.op_type) in _REDUCTIONS:
            return ops.all_reduce(x, self.mesh, [0], str(call.attrs.op_type))
        if kind == "allgather" and int(call.attrs.num_workers) == self.size:
            return ops.all_gather(x, self.mesh, 0, 0)
        if kind == "scatter_from_worker0" and int(call.attrs.num_workers) == self.size:
            return ops.local_slice(x, self.mesh, 0, int(call.attrs.axis))
        raise ModelError(
            "DIST0343",
            f"{kind} with {call.attrs} has no form on {self.size} devices",
            location=f"{self.function} (ccl.{kind})",
            remedy="Give the number of devices that the module was written for; reductions are "
            f"{', '.join(_REDUCTIONS)}.",
        )
