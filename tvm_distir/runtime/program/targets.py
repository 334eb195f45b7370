# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""For which target programs are compiled."""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi

_LEVELS = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
}
"""Microarchitecture levels of the x86-64 psABI and the features that tell them apart."""


@functools.lru_cache(maxsize=1)
def host_target() -> Any:
    """TVM target of this machine: LLVM with the best x86-64 level that the CPU reports.

    LLVM's level 2 vectorises as level 3 does, and compiles in a third of the time.
    """
    base = {"kind": "llvm", "opt-level": 2}
    read = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    features = {str(name) for name, has in read().items() if has} if read else set()
    lower = set(_LEVELS["x86-64-v3"])
    for level, needed in _LEVELS.items():
        if features >= lower | set(needed):
            return tvm.target.Target({**base, "mcpu": level})
    return tvm.target.Target(base)


def target_in_scope() -> Any:
    """The target of the ``with target:`` around the caller, else :func:`host_target`."""
    return tvm.target.Target.current(allow_none=True) or host_target()
