# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find operands by which integers are divided, which must not be zero."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx

from tvm_distir.transforms import divisor_parameters

_DIVISIONS = ("relax.divide", "relax.floor_divide", "relax.floor_mod", "relax.mod")
_KERNEL_CALLS = ("relax.call_tir", "relax.call_tir_inplace", "relax.call_tir_with_grad")


def divisor_leaves(
    call: ir.Call, index: int, functions: Mapping[str, ir.BaseFunc]
) -> tuple[int, ...]:
    """Return the positions of operand ``index``'s tensors that a call divides by.

    Parameters
    ----------
    call : Call
    index : int
    functions : mapping of str to function
        The functions of the module: for a kernel, its integer divisions decide.
    """
    name = call.op.name if isinstance(call.op, ir.Op) else ""
    if index != 1 or name not in (*_DIVISIONS, *_KERNEL_CALLS):
        return ()
    if name in _DIVISIONS:
        return (0,)
    kernel = functions.get(str(call.args[0].name_hint))
    return divisor_parameters(kernel) if isinstance(kernel, tirx.PrimFunc) else ()
