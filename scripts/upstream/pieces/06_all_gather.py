# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``LegalizeRedistribute`` from sharded to replicated, on a mesh of one axis.

In C++, the branches of ``RedistributeLegalizer::VisitExpr_(const CallNode*)`` in
``src/relax/distributed/transform/legalize_redistribute.cc`` that raise an error today. They call a
member that gathers; it differs from what :func:`gather` does below in syntax only::

    // "S[x]" -> "R"
    return Gather(call->args[0], input_spec->axis);

    // "S[x]" -> "S[y]"
    return redistribute_replica_to_shard(builder_->Emit(Gather(call->args[0], input_spec->axis)),
                                         attrs->device_mesh->shape[0], output_spec->axis);

``R.ccl.allgather`` joins along the first dim, so that another dim is brought to the front before
and back after. An all-to-all would move less between two dims, and Relax has none. The type of
the operator on DTensors is new, in ``src/relax/op/distributed/ccl.cc``: what is gathered along the
only mesh axis is replicated::

    Type InferDistTypeAllGather(const Call& call, const BlockBuilder& ctx) {
      DTensorType input = GetInputDTensorType(call, ctx)[0];
      TVM_FFI_ICHECK_EQ(input->device_mesh->shape.size(), 1);
      return DTensorType(input->tensor_ty, input->device_mesh, Placement::FromText("R"));
    }
    TVM_REGISTER_OP("relax.ccl.allgather")
        .set_attr<FInferType>("dist.FInferType", InferDistTypeAllGather);
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax.distributed import DTensorType, Placement, transform
from tvm.relax.distributed.transform import _ffi_api
from tvm.relax.op import permute_dims
from tvm.relax.op.ccl import allgather
from tvm.relax.op.distributed import redistribute_replica_to_shard


def infer_all_gather(call: relax.Call, _context: relax.BlockBuilder) -> ir.Type:
    """Return the type of what is gathered along the only axis of a mesh."""
    ty = call.args[0].ty
    if len(ty.device_mesh.shape) != 1:
        raise ValueError(f"R.ccl.allgather of DTensors needs a mesh of one axis, not {ty}")
    return DTensorType(ty.tensor_ty, ty.device_mesh, Placement.from_text("R"))


def gather(
    builder: relax.BlockBuilder, value: relax.Expr, workers: int, dim: int, ndim: int
) -> relax.Expr:
    """Return a tensor that is sharded along a dim, gathered on all workers."""
    if dim == 0:
        return allgather(value, workers)
    forward = [dim, *(d for d in range(ndim) if d != dim)]
    backward = [forward.index(d) for d in range(ndim)]
    front = builder.emit(permute_dims(value, forward))
    return permute_dims(builder.emit(allgather(front, workers)), backward)


def _sharded_dim(placement: Placement) -> int | None:
    (spec,) = placement.dim_specs
    return int(spec.axis) if int(spec.axis) >= 0 else None


@relax.expr_functor.mutator
class _Legalizer(relax.PyExprMutator):
    """Replaces each redistribution by collectives."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return the last step of a redistribution; other calls stay as they are."""
        call = super().visit_call_(call)
        if not isinstance(call.op, ir.Op) or call.op.name != "relax.dist.redistribute":
            return call
        (value,) = call.args
        mesh = value.ty.device_mesh
        if not tvm_ffi.structural_equal(mesh, call.attrs.device_mesh) or len(mesh.shape) != 1:
            raise ValueError(
                f"{value}: only redistributions within a mesh of one axis can be legalized"
            )
        before, after = _sharded_dim(value.ty.placement), _sharded_dim(call.attrs.placement)
        if before == after:
            return value
        workers = int(mesh.shape[0])
        if before is not None:
            value = gather(self.builder_, value, workers, before, value.ty.tensor_ty.ndim)
        if after is None:
            return value
        if before is not None:
            value = self.builder_.emit(value)
        return redistribute_replica_to_shard(value, workers, after)


@tvm.transform.module_pass(opt_level=1, name="LegalizeRedistribute")
class LegalizeRedistribute:
    """Replace redistributions within a mesh of one axis by collectives."""

    def transform_module(
        self, mod: ir.IRModule, _context: tvm.transform.PassContext
    ) -> ir.IRModule:
        """Return the module without redistributions."""
        legalizer = _Legalizer(mod)
        for name, function in mod.functions_items():
            if isinstance(function, relax.Function):
                legalizer.builder_.update_func(name, legalizer.visit_expr(function))
        return legalizer.builder_.get()


def _refuse(*_: Any) -> None:
    raise AssertionError("the native LegalizeRedistribute was called")


def install() -> None:
    """Put the pass in place of the native one, which is made to fail."""
    ir.register_op_attr("relax.ccl.allgather", "dist.FInferType", infer_all_gather)
    _ffi_api.LegalizeRedistribute = _refuse
    transform.LegalizeRedistribute = LegalizeRedistribute
