# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile functions together and call them by key."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

from tvm_distir.transforms import kernel_passes, repair_kernels

#: Unoptimised: compiling is what takes the time here.
TARGET = {"kind": "llvm", "opt-level": 0}

#: Passes that make kernels faster and leave their results as they are. Kernels with many nested
#: conditions, such as those of ``vision.roi_align``, spend nearly all of their compilation in them.
SIMPLIFICATIONS = (
    "s_tir.CompactBufferAllocation",
    "s_tir.HoistIfThenElse",
    "s_tir.RenormalizeSplitPattern",
    "s_tir.StmtSimplify",
    "tirx.RemoveNoOp",
    "tirx.StmtSimplify",
)


class Machine:
    """Compiles functions into a module, equal functions once, and runs them."""

    def __init__(self) -> None:
        self._functions: dict[str, ir.BaseFunc] = {}
        self._names: dict[Hashable, str] = {}
        self._by_hash: dict[int, list[tuple[ir.BaseFunc, str]]] = {}
        self._kernels = relax.BlockBuilder()
        self._vm: Any = None

    def add(self, key: Hashable, function: relax.Function) -> None:
        """Register a function under a key."""
        candidates = self._by_hash.setdefault(int(tvm_ffi.structural_hash(function)), [])
        known = next((n for f, n in candidates if tvm_ffi.structural_equal(f, function)), None)
        if known is None:
            known = f"f{len(self._functions)}"
            candidates.append((function, known))
            self._functions[known] = function.with_attr("global_symbol", known)
        self._names[key] = known

    def kernel(self, function: ir.BaseFunc, name: str) -> ir.GlobalVar:
        """Add a PrimFunc under a unique name."""
        return self._kernels.add_func(function.without_attr("global_symbol"), name)

    def compile(self) -> None:
        """Compile all functions that were added."""
        if not self._functions:
            return
        mod = self._kernels.get()
        for name, function in self._functions.items():
            mod[name] = function
        target = tvm.target.Target(TARGET)
        with target:
            ready = tvm.transform.Sequential([*kernel_passes(), repair_kernels])(mod)
        current = tvm.transform.PassContext.current()
        with tvm.transform.PassContext(
            opt_level=current.opt_level,
            required_pass=current.required_pass,
            disabled_pass=[*current.disabled_pass, *SIMPLIFICATIONS],
            instruments=current.instruments,
            config=current.config,
        ):
            built = tvm.compile(ready, target)
        self._vm = relax.VirtualMachine(built, tvm.cpu())

    def run(self, key: Hashable, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Call a function on arrays."""
        tensors = [tvm.runtime.tensor(np.array(x, order="C")) for x in inputs]
        out = self._vm[self._names[key]](*tensors)
        return [out.numpy()] if hasattr(out, "numpy") else [x.numpy() for x in out]
