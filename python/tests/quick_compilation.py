# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How programs are compiled whose machine code is not the subject of a test."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.target import Target

from tvm_distir.execution.runtime.program import lowered
from tvm_distir.execution.runtime.program.compiled import SHARED, LibraryCache

QUICK_TARGET = Target({"kind": "llvm", "opt-level": 0})
"""LLVM without its optimisations: a thirtieth of what ``"llvm"`` takes, half of the package's."""

NO_CHECKS = {"tirx.disable_assert": True}
"""Kernels without checks of their arguments, whose machine code takes longer than the kernels'."""

SHARING = LibraryCache(64, SHARED)
"""Libraries of the engine ``threads`` with the kernels of ``virtual``, under names of their own."""


@functools.cache
def _quick_context(level: int) -> tvm.transform.PassContext:
    """Return the same context each time: memos of stages tell contexts apart by their identity."""
    return tvm.transform.PassContext(opt_level=level, config=NO_CHECKS)


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Compile for :data:`QUICK_TARGET` and with :data:`NO_CHECKS` in the calling thread.

    Engines of this process share kernels.
    """
    level = tvm.transform.PassContext.current().opt_level
    usual = lowered._LIBRARIES
    lowered._LIBRARIES = SHARING
    try:
        with QUICK_TARGET, _quick_context(level):
            yield
    finally:
        lowered._LIBRARIES = usual


def _build_quickly(mod: ir.IRModule, target: Target | None = None, *more: str) -> Any:
    """Build kernels as TVM does, but for :data:`QUICK_TARGET` in its scope.

    TVM's folding of constants builds for ``"llvm"``, whatever the scope is.
    """
    current = Target.current(allow_none=True)
    if current is not None and str(current) == str(QUICK_TARGET):
        target = QUICK_TARGET
    return tvm.tirx.build(mod, target, *more)


def install() -> None:
    """Let TVM 0.27 fold constants by kernels that are built quickly."""
    if tvm.__version__.startswith("0.27."):
        tvm_ffi.register_global_func("tirx.build", _build_quickly, override=True)


def quick_machine(mod: ir.IRModule) -> relax.VirtualMachine:
    """Return a machine of a module built by TVM's own pipeline, without this package's passes."""
    return relax.VirtualMachine(tvm.compile(mod, QUICK_TARGET), tvm.cpu())


def run_main(mod: ir.IRModule, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the only result of ``main``, built by TVM's own pipeline."""
    return quick_machine(mod)["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()
