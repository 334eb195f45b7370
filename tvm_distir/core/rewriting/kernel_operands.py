# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give kernels without tensor operands a scalar that they do not read.

Before, as ``LegalizeOps`` leaves ``R.zeros`` and ``R.arange``::

    y = R.call_tir(cls.zeros, R.tuple(), out_ty=R.Tensor((8, 16)))

After::

    y = R.call_tir(cls.zeros_on_mesh, (R.const(0),), out_ty=R.Tensor((8, 16)))

TVM takes the result of a call without tensor operands for a plain tensor: as a DTensor it is not
well-formed. The scalar is on the mesh, and a device computes its shard as with other kernels.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax, tirx
from tvm.s_tir import renew_defs

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import flat_types, relax_functions, tensor_type

from .calls import called_name
from .replacing import replaced_calls
from .scopes import all_bindings

CALL_KERNEL = "relax.call_tir"


def with_kernel_operands(mod: ir.IRModule) -> ir.IRModule:
    """Return the module whose kernels all have a tensor operand; it is not changed."""
    kernel_call = handle(ir.Op.get(CALL_KERNEL))
    values = (b.value for _, fn in relax_functions(mod) for b in all_bindings(fn.body))
    calls = (value for value in values if type(value) is ir.Call)
    if not any(handle(call.op) == kernel_call and _creates(call) for call in calls):
        return mod

    def written(builder: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
        """Call a kernel with a scalar before its parameters."""
        if not _creates(call):
            return None
        target, operands, *rest = call.args
        kernel = mod[target]
        params = [tirx.decl_buffer((), "int32", "unread"), *kernel.params]
        new = tirx.PrimFunc(params, kernel.body, kernel.ret_type, kernel.attrs)
        private = renew_defs(new).without_attr("global_symbol")
        on_mesh = builder.add_func(private, f"{target.name_hint}_on_mesh")
        scalar_first = relax.Tuple([relax.const(0, "int32"), *operands.fields])
        return ir.Call(call.op, [on_mesh, scalar_first, *rest], call.attrs, call.ty_args)

    return replaced_calls(mod, {CALL_KERNEL: written})


def _creates(value: Any) -> bool:
    """Return whether a value is a call of a kernel without tensor operands."""
    if type(value) is not ir.Call or called_name(value) != CALL_KERNEL:
        return False
    if not isinstance(value.args[0], ir.GlobalVar):
        return False
    return not any(tensor_type(ty) for ty in flat_types(value.args[1].ty))
