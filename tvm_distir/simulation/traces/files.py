# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ...errors import UsageError


def write_whole(path: str | Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a trace into a new file and move it to its place.

    Parameters
    ----------
    path : str or Path
    content : bytes or callable
        What writes it into the open file.

    Raises
    ------
    UsageError
        DIST0153 when the file cannot be written.
    """
    target = Path(path)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".part", dir=target.parent
        )
        with os.fdopen(handle, "wb") as stream:
            if callable(content):
                content(stream)
            else:
                stream.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
        temporary = None
    except OSError as err:
        raise UsageError(
            "DIST0153",
            f"the trace cannot be written: {err.strerror or err}",
            place=str(target),
            remedy="Name a file in a folder that exists and that you may write to.",
        ) from err
    finally:
        if temporary is not None:
            os.unlink(temporary)


def trace_form(path: str | Path) -> str:
    """Form of a trace by the ending of its path: ``pftrace`` or ``json``."""
    return "pftrace" if Path(path).suffix in (".pftrace", ".perfetto-trace") else "json"
