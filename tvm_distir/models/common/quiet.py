# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Report an error as a single line, without TVM's complaint about a half-built function.

What importers need of the process, they use by turns: :data:`TURN`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import traceback
import warnings
from collections.abc import Iterator

import tvm

IMPORT_ERRORS = (
    tvm.error.InternalError,
    tvm.error.OpError,
    tvm.error.OpNotImplemented,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors that TVM's importers, and its type inference, raise for a model that they do not
accept."""


TURN = threading.RLock()
"""Held by the thread that replaces the filters of warnings or standard error, reads an archive of
torch (a second reader is refused), or parses Python: CPython counts the depth of the syntax trees
that all threads make at once as that of one, and raises SystemError."""


def reason(error: Exception) -> str:
    """Return the first line of an error's message, or its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def drop_half_built(error: BaseException) -> None:
    """Release the objects that the frames of a failed import or parse hold.

    They hold a BlockBuilder that TVM's C++ side, when it is released, reports on standard error
    as "destroyed with remaining blocks"; the package's error says what is wrong.
    """
    with muted_stderr():
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__
        gc.collect()


@contextlib.contextmanager
def warnings_ignored() -> Iterator[None]:
    """Ignore warnings, in one thread at a time."""
    with TURN, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def muted_stderr() -> Iterator[None]:
    """Suppress writes to standard error, including those of C++, in one thread at a time."""
    with TURN, _to_nowhere():
        yield


@contextlib.contextmanager
def _to_nowhere() -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
