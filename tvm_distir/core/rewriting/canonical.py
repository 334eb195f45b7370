# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bring modules of TVM's passes and front ends into the one form that the passes work on."""

from __future__ import annotations

from tvm import ir

from .closures import MAKE_CLOSURE, without_closures
from .functions import LOCAL, inner_made_private, ops_called
from .inplace_calls import CALL_INPLACE, without_inplace_calls
from .kernel_operands import CALL_KERNEL, with_kernel_operands
from .partitions import open_partitions, with_composite_ops


def plain_calls(mod: ir.IRModule) -> ir.IRModule:
    """Return a module whose calls of functions are all calls of functions of the module.

    Raises
    ------
    PropagationError
        DIST0412 for a closure that is read other than by calls.
    """
    return without_closures(open_partitions(mod))


def canonical(mod: ir.IRModule) -> ir.IRModule:
    """Return a module at level 1 or 2 in the form that rules and passes know.

    Its calls are :func:`plain_calls`, called functions are private, each kernel has a tensor
    operand and overwrites none, and ``Composite`` functions have the names of their ops.

    Raises
    ------
    PropagationError
        As :func:`plain_calls`.
    """
    mod = open_partitions(mod)
    called = ops_called(mod, (MAKE_CLOSURE, LOCAL, CALL_INPLACE, CALL_KERNEL))
    if not called.isdisjoint((MAKE_CLOSURE, LOCAL)):  # whose bodies the scan has not seen
        mod, called = without_closures(mod), {CALL_INPLACE, CALL_KERNEL}
    mod = with_composite_ops(mod)
    if CALL_INPLACE in called:
        mod = without_inplace_calls(mod)
    return inner_made_private(with_kernel_operands(mod) if called else mod)
