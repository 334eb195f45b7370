# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register the packed functions of a library, when a program first calls one."""

from __future__ import annotations

import functools

import tvm_ffi

from tvm_distir.support import ForkSafeLock

from .packed_names import PREFIXES, TORCH, check_installed

_turn = ForkSafeLock()
"""Held while the functions are registered: the ranks of a program are threads."""


def register_kernels(library: str) -> None:
    """Register the packed functions of a library, once per process.

    All of them are registered when it returns, also where another thread began.

    Raises
    ------
    DependencyError
        DIST0111 where PyTorch is not installed.
    """
    check_installed(library)
    with _turn():
        _register(library)


@functools.cache
def _register(library: str) -> None:
    if library == TORCH:
        import torch

        from . import torch_functions

        functions = {
            name: torch.no_grad()(function) for name, function in torch_functions.FUNCTIONS.items()
        }
    else:
        from . import numpy_functions

        functions = numpy_functions.FUNCTIONS
    for name, function in functions.items():
        tvm_ffi.register_global_func(PREFIXES[library] + name, function, override=True)
