# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Limit the cores of TVM's kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tvm_distir.support import ForkSafeLock

_turn = ForkSafeLock()

THREADS_VARIABLE = "TVM_NUM_THREADS"
"""Environment variable that TVM reads when a thread calls its first parallel kernel."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep TVM's kernels single-threaded on threads that begin inside; callers take turns."""
    with _turn():
        before = os.environ.get(THREADS_VARIABLE)
        os.environ[THREADS_VARIABLE] = "1"
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(THREADS_VARIABLE, None)
            else:
                os.environ[THREADS_VARIABLE] = before
