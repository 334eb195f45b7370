# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""JSON files to plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .values import Refuse


def read_text(path: str | Path, refuse: Refuse, remedy: str = "Check the path.") -> str:
    """Text of a file; ``refuse`` makes the error of one that cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(str(path), f"it cannot be read: {reason}", remedy) from error


def parse_json(
    text: str, place: str, refuse: Refuse, remedy: str = "Repair the file.",
    repeated: Refuse | None = None,
) -> Any:  # fmt: skip
    """Plain data of a JSON text.

    Parameters
    ----------
    text : str
    place : str
    refuse : callable
        Makes the error of a text that is no JSON.
    remedy : str
        For it.
    repeated : callable, optional
        Makes the error of a key that stands twice in one object, if not ``refuse``.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise (repeated or refuse)(place, f'the key "{twice}" stands twice', "Remove one.")
        return out

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise refuse(f"{place}{line}", f"it is no JSON: {error}", remedy) from error


def read_json(
    path: str | Path, refuse: Refuse, remedy: str = "Repair the file.",
    repeated: Refuse | None = None,
) -> Any:  # fmt: skip
    """Plain data of a JSON file; see :func:`read_text` and :func:`parse_json`."""
    return parse_json(read_text(path, refuse), str(path), refuse, remedy, repeated)
