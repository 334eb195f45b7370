# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Estimate the time of recomputing values."""

from __future__ import annotations

from functools import cached_property

from tvm import ir, relax, tirx
from tvm.relax import Expr

from tvm_distir.core.ops import kernel_of
from tvm_distir.core.propagation import Costs
from tvm_distir.hardware import Clock, System
from tvm_distir.support import memoized
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions


class ValueTimes:
    """Times of bound values, in picoseconds of a system or as fixed weights of the planner.

    Parameters
    ----------
    functions : NamedFunctions
        The called functions; a call takes the time of its bindings.
    system : System or None
        The system whose clock gives the times. None:
        :class:`tvm_distir.core.propagation.solve.cost.Costs`.
    """

    def __init__(self, functions: NamedFunctions, system: System | None) -> None:
        self.functions = functions
        self._clock = None if system is None else Clock(system)
        self._weights = Costs()

    @cached_property
    def kernels(self) -> ir.IRModule:
        """Return the PrimFuncs among the functions."""
        functions = self.functions
        return ir.IRModule(
            {
                functions.variables[n]: f
                for n, f in functions.of.items()
                if isinstance(f, tirx.PrimFunc)
            }
        )

    def of(self, value: Expr) -> int:
        """Return the time of the value of a variable, or 0 if it computes nothing."""
        if not isinstance(value, ir.Call):
            return 0
        if isinstance(value.op, ir.GlobalVar):
            return self._of_function(str(value.op.name_hint))
        kernel = kernel_of(value, self.kernels, value.ty)
        if kernel.is_view:
            return 0
        if self._clock is None:
            weights = self._weights
            return weights.flop * kernel.work.flops + weights.memory * kernel.moved_bytes
        work = kernel.work
        return self._clock.kernel(
            work.flops, kernel.moved_bytes, work.kernel_class, kernel.dtype
        ).duration_ps

    @memoized
    def _of_function(self, name: str) -> int:
        fn = self.functions.of[name]
        if not isinstance(fn, relax.Function):
            return 0
        return sum(self.of(b.value) for block in fn.body.blocks for b in block.bindings)
