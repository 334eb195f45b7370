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
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import renew_defs

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import flat_types, relax_functions, tensor_type

from .functions import with_functions
from .scopes import all_bindings

CALL_KERNEL = "relax.call_tir"
_CALL_TIR = handle(ir.Op.get(CALL_KERNEL))


def with_kernel_operands(mod: ir.IRModule) -> ir.IRModule:
    """Return the module whose kernels all have a tensor operand; it is not changed."""
    values = (b.value for _, fn in relax_functions(mod) for b in all_bindings(fn.body))
    if not any(map(_creates, values)):
        return mod
    writer = _Writer(mod)
    for gv, fn in relax_functions(mod):
        writer.builder_.update_func(gv, writer.visit_expr(fn))
    return with_functions(mod, dict(writer.builder_.get().functions))


def _creates(value: Any) -> bool:
    """Return whether a value is a call of a kernel without tensor operands."""
    if type(value) is not ir.Call or handle(value.op) != _CALL_TIR:
        return False
    if not isinstance(value.args[0], ir.GlobalVar):
        return False
    return not any(tensor_type(ty) for ty in flat_types(value.args[1].ty))


@mutator
class _Writer(PyExprMutator):  # type: ignore[misc,unused-ignore]
    """Writer of the calls of a module."""

    def __init__(self, mod: ir.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._kernels: dict[str, ir.GlobalVar] = {}

    def visit_call_(self, call: ir.Call) -> ir.Expr:
        call = super().visit_call_(call)
        if not _creates(call):
            return call
        kernel, rest = self._kernel(call.args[0]), list(call.args[1].fields)
        operands = relax.Tuple([relax.const(0, "int32"), *rest])
        return ir.Call(call.op, [kernel, operands, *call.args[2:]], call.attrs, call.ty_args)

    def _kernel(self, target: ir.GlobalVar) -> ir.GlobalVar:
        """Return the kernel with a scalar before its parameters."""
        name = str(target.name_hint)
        if name not in self._kernels:
            kernel = self._mod[target]
            params = [tirx.decl_buffer((), "int32", "unread"), *kernel.params]
            new = tirx.PrimFunc(params, kernel.body, kernel.ret_type, kernel.attrs)
            private = renew_defs(new).without_attr("global_symbol")
            self._kernels[name] = self.builder_.add_func(private, f"{name}_on_mesh")
        return self._kernels[name]
