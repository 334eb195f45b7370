# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the kernels of other libraries that programs call; needs TVM's runtime alone."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence

from tvm_distir.support import EngineError, missing_extra, nearest

AUTO, TORCH, NUMPY, TVM = "auto", "torch", "numpy", "tvm"
DISPATCHES = (AUTO, TORCH, NUMPY, TVM)
"""What a user chooses of: a library, TVM's kernels alone, or what fits the installation."""

PREFIXES = {TORCH: "tvm_distir.torch.", NUMPY: "tvm_distir.numpy."}
"""Prefixes of the packed functions, by library."""
CAUSAL = (None, "TopLeft", "BottomRight")
"""Causal masks of ``nn.attention``, by the number that a packed function gets."""


CUDA = "cuda"
"""Key of the targets whose memory PyTorch shares."""


def group_sizes(shape: Sequence[int], second: int, third: int) -> list[int]:
    """Return the sizes of three groups of dims, of which two begin at these numbers."""
    return [math.prod(part) for part in (shape[:second], shape[second:third], shape[third:])]


def causal_offset(rows: int, columns: int, causal: int) -> int:
    """Return how many columns more than its number each row of scores sees, and itself."""
    return abs(columns - rows) if CAUSAL[causal] == "BottomRight" else 0


def has_torch() -> bool:
    """Return whether PyTorch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


def check_dispatch(dispatch: str) -> None:
    """Refuse (DIST0623) a choice that is not in :data:`DISPATCHES`."""
    if dispatch not in DISPATCHES:
        problem = f'there are no kernels of "{dispatch}"'
        remedy = nearest(str(dispatch), DISPATCHES)
        raise EngineError("DIST0623", problem, location="dispatch", remedy=remedy)


def library_of(dispatch: str, target_keys: Iterable[str]) -> str:
    """Return the library of a choice, for a target.

    ``auto`` is PyTorch for CPUs where it is installed, else NumPy. For CUDA it is PyTorch, which
    must be installed where the program runs, not where it is compiled, and TVM on other GPUs.

    Raises
    ------
    EngineError
        DIST0623 for an unknown choice, or for NumPy on a GPU.
    """
    check_dispatch(dispatch)
    on_gpu = "gpu" in target_keys
    if dispatch == AUTO:
        if on_gpu:
            return TORCH if CUDA in target_keys else TVM
        return TORCH if has_torch() else NUMPY
    if dispatch == NUMPY and on_gpu:
        problem = "the kernels of NumPy run on CPUs, and the target is a GPU"
        remedy = 'Give "torch", or "tvm".'
        raise EngineError("DIST0623", problem, location="dispatch", remedy=remedy)
    return dispatch


def library_named(function: str) -> str | None:
    """Return the library of a packed function, or None."""
    return next((name for name, prefix in PREFIXES.items() if function.startswith(prefix)), None)


def check_installed(library: str) -> None:
    """Refuse (DIST0111) a library that is not installed."""
    if library == TORCH and not has_torch():
        problem = "the program calls kernels of PyTorch, which is not installed (a program that "
        problem += 'is compiled with dispatch="tvm" calls none)'
        raise missing_extra(problem, "dispatch", "torch")
