# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register the packed functions that PyTorch computes, when a program first calls one."""

from __future__ import annotations

import functools
import importlib.util

import tvm_ffi

from tvm_distir.support import ForkSafeLock, missing_extra

from .packed_names import TORCH_PREFIX

_turn = ForkSafeLock()
"""Held while the functions are registered: the ranks of a program are threads."""


def register_torch_kernels() -> None:
    """Register the packed functions ``tvm_distir.torch.*``, once per process.

    All of them are registered when it returns, also where another thread began.

    Raises
    ------
    DependencyError
        DIST0111 where PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        problem = "the program calls kernels of PyTorch, which is not installed"
        raise missing_extra(problem, "dispatch", "torch")
    with _turn():
        _register()


@functools.cache
def _register() -> None:
    import torch

    from .torch_functions import FUNCTIONS

    for name, function in FUNCTIONS.items():
        tvm_ffi.register_global_func(TORCH_PREFIX + name, torch.no_grad()(function), override=True)
