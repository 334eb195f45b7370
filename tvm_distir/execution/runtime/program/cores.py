# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Limit the cores of TVM's kernels, and of the libraries that programs call."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tvm_distir.support import ForkSafeLock

_turn = ForkSafeLock()

THREADS_VARIABLE = "TVM_NUM_THREADS"
"""Environment variable that TVM reads when a thread calls its first parallel kernel."""


Threads = tuple[Callable[[], int], Callable[[int], object]]
"""Functions that return and set the number of threads of a library."""


@functools.cache
def _blas_threads() -> tuple[Threads, ...]:
    """Return the functions of the OpenBLAS inside of NumPy's wheel; other builds have none."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in folder.glob("*openblas*"):
        blas = ctypes.CDLL(str(path))
        for suffix in ("64_", ""):
            names = [f"scipy_openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(blas, name) for name in names):
                return ((getattr(blas, names[0]), getattr(blas, names[1])),)
    return ()


def _library_threads() -> list[Threads]:
    """Return the functions of the libraries that are loaded."""
    torch = sys.modules.get("torch")
    of_torch = [] if torch is None else [(torch.get_num_threads, torch.set_num_threads)]
    return [*_blas_threads(), *of_torch]


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep kernels single-threaded on threads that begin inside; callers take turns."""
    with _turn():
        before = os.environ.get(THREADS_VARIABLE)
        os.environ[THREADS_VARIABLE] = "1"
        libraries = [(limit, count()) for count, limit in _library_threads()]
        try:
            for limit, _ in libraries:
                limit(1)
            yield
        finally:
            for limit, count in libraries:
                limit(count)
            if before is None:
                os.environ.pop(THREADS_VARIABLE, None)
            else:
                os.environ[THREADS_VARIABLE] = before
