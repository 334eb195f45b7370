# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describes the kernels of a function's calls; equal bindings of all modules are analysed once."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.rewriting.native.function_index import FunctionView

from .class_memo import class_memo
from .kernels import Kernel, kernel_of
from .transposes import transposed_operands


class LikeKernels:
    """Kernels of the bindings of a function of level 5.

    Parameters
    ----------
    mod : IRModule
        Holds the PrimFuncs that are called.
    reading : FunctionView
        The view of the function.

    Attributes
    ----------
    in_place : set of int
        Numbers of the variables that need no separate memory, see
        :func:`.transposes.transposed_operands`.
    """

    def __init__(self, mod: ir.IRModule, reading: FunctionView) -> None:
        self.mod, self.reading = mod, reading
        self.in_place = transposed_operands(reading)
        self._memo = class_memo("kernels")

    def key(self, number: int) -> tuple[int, bool]:
        """Return a key that equal bindings share; its first item is negative for unique ones."""
        return self.reading.like[number], self.reading.params + number in self.in_place

    def of(self, number: int) -> Kernel:
        """Return the kernel of a binding that is a call, as :func:`.kernels.kernel_of` gives it."""
        key = self.key(number)
        call, ty = self.reading.values[number], self.reading.bound(number).ty
        kernel: Kernel = self._memo.of(key, lambda: kernel_of(call, self.mod, ty, key[1]))
        return kernel
