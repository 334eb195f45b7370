# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the memory that compiled kernels allocate while they run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.instrument import pass_instrument

from tvm_distir.support import Analyzer

Sizes = Mapping[ir.Expr, int]
"""The sizes of variables of a kernel."""


@pass_instrument
class ScratchCounter:
    """Counter of the bytes that kernels allocate, by name, when storage is final.

    Parameters
    ----------
    sizes : mapping of str to mapping
        By name the kernels that are counted, and the sizes that a call gives their variables.
    """

    def __init__(self, sizes: Mapping[str, Sizes]) -> None:
        self.sizes = sizes
        self.bytes: dict[str, int] = {}

    def run_after_pass(self, mod: ir.IRModule, info: tvm.transform.PassInfo) -> None:
        """Count after the pass that lets buffers share memory."""
        if str(info.name) == "tirx.StorageRewrite":
            for gv, fn in mod.functions.items():
                name = str(gv.name_hint)
                if name in self.sizes:
                    self.bytes[name] = _allocated_bytes(fn, self.sizes[name])


def _allocated_bytes(fn: tirx.PrimFunc, sizes: Sizes) -> int:
    """Return the bytes of the buffers in global memory that a lowered PrimFunc allocates."""
    analyzer = Analyzer()
    for variable, size in sizes.items():
        analyzer.bind(variable, tirx.IntImm(variable.ty.dtype, size))
    buffers: list[int] = []

    def visit(node: tirx.AllocBuffer) -> None:
        kind = node.buffer.ty
        if str(kind.storage_scope) in ("", "global"):
            count = math.prod(int(analyzer.simplify(n)) for n in kind.shape)
            buffers.append(count * tvm_ffi.dtype(str(kind.dtype)).itemsize)  # of all lanes

    tvm_ffi.structural_walk(fn.body, [(tirx.AllocBuffer, visit)])
    return sum(buffers)
