# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write files of traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tvm_distir.support import UsageError, write_atomically


def write_trace(path: str | Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a trace into a new file and move it to its place.

    Parameters
    ----------
    path : str or Path
    content : bytes or callable
        The content, or a function that writes it into the open file.

    Raises
    ------
    UsageError
        DIST0153 when the file cannot be written.
    """
    try:
        write_atomically(path, content)
    except OSError as err:
        raise UsageError(
            "DIST0153", f"the trace cannot be written: {err.strerror or err}",
            location=str(path), remedy="Give a file in an existing, writable folder.",
        ) from err  # fmt: skip


def trace_format(path: str | Path) -> str:
    """Return the form of a trace by the ending of its path: ``pftrace`` or ``json``."""
    return "pftrace" if Path(path).suffix in (".pftrace", ".perfetto-trace") else "json"
