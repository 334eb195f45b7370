# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Refuse operators that were not legalized where their shards do not give the whole.

``LowerGlobalViewToLocalView`` adds an all-reduce to calls of kernels only. An operator is checked
as the kernel that ``LegalizeOps`` would make of it, by the check of kernels that runs before the
pass; a sharded loop that is reduced is refused as well. Operands whose placements do not agree,
one of which type inference drops, shard two loops of that kernel by one mesh axis. Operators that
``LegalizeOps`` leaves as they are have no kernel, and are not checked.

:func:`kernel_of_operator` is an addition to the function ``kernel_of`` of the check.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from . import refuse_kernels
from .refuse_kernels import Kernel, kernel_of

NO_COMPUTATION = ("relax.call_tir", "relax.call_pure_packed", "relax.ccl.", "relax.dist.")


def kernel_of_operator(mod: ir.IRModule, call: ir.Call, types: list[Any]) -> Kernel | None:
    """Return the kernel of a call of a kernel or of an operator, None without."""
    operands = [x for x in call.args if isinstance(x.ty, DTensorType)]
    specs = [spec for x in operands for spec in x.ty.placement.dim_specs]
    is_sharded = any(int(spec.axis) >= 0 for spec in specs)
    if not is_sharded or call.op.name.startswith(NO_COMPUTATION):
        return kernel_of(mod, call, types)
    whole = [relax.Var(f"x{i}", x.ty.tensor_ty) for i, x in enumerate(operands)]
    variables = iter(whole)
    args = [next(variables) if isinstance(x.ty, DTensorType) else x for x in call.args]
    builder = relax.BlockBuilder()
    with builder.function("main", whole):
        builder.emit_func_output(builder.emit(ir.Call(call.op, args, call.attrs, call.ty_args)))
    legalized = relax.transform.LegalizeOps()(builder.get())
    values = [binding.value for binding in legalized["main"].body.blocks[0].bindings]
    kernels = [x for x in values if isinstance(x, ir.Call) and x.op.name == "relax.call_tir"]
    if len(kernels) > 1:
        raise ValueError(f"{call.op.name} of sharded tensors is several kernels: run LegalizeOps")
    if not kernels:
        return None
    types = [operands[whole.index(x)].ty for x in kernels[0].args[1].fields] + [*types]
    return Kernel(legalized[kernels[0].args[0]], types, is_legalized=False)


def install() -> None:
    """Let the check find the kernels of operators too."""
    refuse_kernels.kernel_of = kernel_of_operator
