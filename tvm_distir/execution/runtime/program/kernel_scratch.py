# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the memory that compiled kernels allocate while they run."""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.instrument import pass_instrument

from .io_layout import np_dtype


@pass_instrument
class ScratchCounter:
    """Counter of the bytes that kernels allocate, by name, when storage is final."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}

    def run_after_pass(self, mod: ir.IRModule, info: tvm.transform.PassInfo) -> None:
        """Count after the pass that lets buffers share memory."""
        if str(info.name) == "tirx.StorageRewrite":
            for gv, fn in mod.functions.items():
                if isinstance(fn, tirx.PrimFunc):
                    self.bytes[str(gv.name_hint)] = _allocated_bytes(fn)


def _allocated_bytes(fn: tirx.PrimFunc) -> int:
    """Return the bytes of the buffers in global memory that a lowered PrimFunc allocates."""
    sizes: list[int] = []

    def visit(node: tirx.AllocBuffer) -> None:
        kind = node.buffer.ty
        if str(kind.storage_scope) in ("", "global"):
            count = math.prod(int(n) for n in kind.shape)
            sizes.append(count * np_dtype(str(kind.dtype)).itemsize)

    tvm_ffi.structural_walk(fn.body, [(tirx.AllocBuffer, visit)])
    return sum(sizes)
