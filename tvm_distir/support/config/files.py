# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read JSON files as plain data."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from .models import Refuse

_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe, which may never end: only regular files are supported"),
    (stat.S_ISCHR, "it is a device, which may never end: only regular files are supported"),
    (stat.S_ISBLK, "it is a device: only regular files are supported"),
    (stat.S_ISSOCK, "it is a socket: only regular files are supported"),
)


def file_fault(path: str | Path) -> str | None:
    """Return why there is no readable file at a path, or None; the file is not opened.

    Examples
    --------
    >>> file_fault("/dev/zero")
    'it is a device, which may never end: only regular files are supported'
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return getattr(error, "strerror", None) or str(error)
    return next((kind_title for is_kind, kind_title in _KINDS if is_kind(mode)), None)


def read_text(path: str | Path, refuse: Refuse, remedy: str = "Check the path.") -> str:
    """Return the text of a file; ``refuse`` makes the error of an unreadable file."""
    fault = file_fault(path)
    if fault is not None:
        raise refuse(str(path), f"it cannot be read: {fault}", remedy)
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(str(path), f"it cannot be read: {reason}", remedy) from error


def parse_json(
    text: str, location: str, refuse: Refuse, remedy: str = "Repair the file.",
    repeated: Refuse | None = None,
) -> Any:  # fmt: skip
    """Return the plain data of a JSON text.

    Parameters
    ----------
    text : str
    location : str
    refuse : callable
        Makes the error of a text that is no JSON.
    remedy : str
        The remedy of the error.
    repeated : callable, optional
        A function that makes the error of a key that occurs twice in an object, instead of
        ``refuse``.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        out = dict(pairs)
        if len(out) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise (repeated or refuse)(location, f'the key "{twice}" occurs twice', "Remove one.")
        return out

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise refuse(f"{location}{line}", f"it is not JSON: {error}", remedy) from error


def read_json(
    path: str | Path, refuse: Refuse, remedy: str = "Repair the file.",
    repeated: Refuse | None = None,
) -> Any:  # fmt: skip
    """Return the plain data of a JSON file; see :func:`read_text` and :func:`parse_json`."""
    return parse_json(read_text(path, refuse), str(path), refuse, remedy, repeated)


def shipped_data(source: str, name: str) -> Any:
    """Return the plain data of a JSON file of this package, beside the source that reads it."""
    return json.loads((Path(source).parent / name).read_text(encoding="utf-8"))
