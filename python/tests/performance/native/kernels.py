# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Puts the references of native functions in the place of the functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tvm_distir.support.native.loader import LIBRARY_VARIABLE, NO_LIBRARY, has_library

KERNELS = ("native", "reference") if has_library() else ("reference",)


@contextmanager
def using(kernels: str) -> Iterator[None]:
    """Call native functions, or their references in Python (slow, exact)."""
    if kernels == "native":
        yield
        return
    with patch.dict("os.environ", {LIBRARY_VARIABLE: NO_LIBRARY}):
        yield
