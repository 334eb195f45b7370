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
    keys : list of (int, bool)
        Of each binding, a key that equal ones share; the first item of a unique one is negative.
    """

    def __init__(self, mod: ir.IRModule, reading: FunctionView) -> None:
        self.mod, self.reading = mod, reading
        self.in_place = transposed_operands(reading)
        self.keys = [
            (like, reading.params + n in self.in_place) for n, like in enumerate(reading.like)
        ]
        self._memo = class_memo("kernels")

    def of(self, number: int) -> Kernel:
        """Return the kernel of a binding that is a call, as :func:`.kernels.kernel_of` gives it."""
        key = self.keys[number]
        call, ty = self.reading.values[number], self.reading.bound(number).ty
        kernel: Kernel = self._memo.of(key, lambda: kernel_of(call, self.mod, ty, key[1]))
        return kernel
