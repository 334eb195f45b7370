# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write files atomically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | Path, content: str | bytes | Callable[[BinaryIO], object]) -> None:
    """Write a new file beside a path and move it there, with the mode of an ordinary new file.

    Parameters
    ----------
    path : str or Path
    content : str, bytes or callable
        Text (UTF-8), or what writes it into the open file.

    Raises
    ------
    OSError
        Where it cannot be written; nothing is left then, and what was there is as it was.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    stream = open(temporary, "xb")  # its mode is that of a new file, by the umask
    try:
        with stream:
            if callable(content):
                content(stream)
            else:
                stream.write(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
