# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Warn, and count warnings: what is computed with one is not taken from a memory silently."""

from __future__ import annotations

import threading
import warnings


class _Counts(threading.local):
    issued = 0


_counts = _Counts()


def warn(message: str, stacklevel: int = 1) -> None:
    """Issue a warning, as ``warnings.warn`` does, and count it."""
    _counts.issued += 1
    warnings.warn(message, stacklevel=stacklevel + 1)


def warnings_issued() -> int:
    """Return how many warnings the thread has issued by :func:`warn`."""
    return _counts.issued
