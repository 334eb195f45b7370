# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the files of outputs, and move them where they belong."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from .terminal import print_result

Content = str | bytes | Callable[[str], object]
"""A file's content, or a function that writes it to the path it is given."""
_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_regular(path: Path) -> bool:
    """Return whether ``path`` is, or will be, an ordinary file (no device, no pipe, not stdout)."""
    return str(path) not in _STDOUT and (not path.exists() or path.is_file())


def temporary_file(path: Path) -> str:
    """Make an empty file beside ``path`` (in the system's folder where ``path`` is a device)."""
    folder = str(path.parent) if is_regular(path) else None
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=folder)
    os.close(handle)
    return name


def fill(temporary: str, content: Content) -> None:
    """Write the content to a temporary file."""
    if callable(content):
        content(temporary)
        return
    data = content.encode("utf-8") if isinstance(content, str) else content
    Path(temporary).write_bytes(data)


def _opened(path: Path) -> int:
    """Open a device or a pipe; raise OSError for a pipe without a reader, which would block."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            error.strerror = "the pipe has no reader"
        raise
    os.set_blocking(handle, True)
    return handle


def move_to(temporary: str, path: Path) -> None:
    """Move a finished file to its path, with the mode of an ordinary new file."""
    if str(path) in _STDOUT:  # results follow there: opened anew it might be overwritten
        print_result(Path(temporary).read_text(encoding="utf-8"))
        return
    if not is_regular(path):
        with open(temporary, "rb") as source, os.fdopen(_opened(path), "wb") as target:
            target.write(source.read())
        return
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    else:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    os.chmod(temporary, mode)
    os.replace(temporary, path)
