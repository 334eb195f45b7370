# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the names in locations."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r'^"((?:[^"\\]|\\.)*)"(?:\s*\(.*\))?$', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-9A-Fa-f]{2})|(.))")
_HOPS = 8


def read_name(location: str, aliases: Mapping[str, str]) -> str:
    """Return the name in a location, or an empty text.

    Parameters
    ----------
    location : str
        Between ``loc(`` and ``)``.
    aliases : mapping of str to str
        What ``#loc1`` and the like represent.

    Examples
    --------
    >>> read_name("#loc1", {"#loc1": '"p[0]"'}), read_name('"file.py":3:1', {})
    ('p[0]', '')
    """
    for _ in range(_HOPS):
        if location not in aliases:
            break
        location = aliases[location]
    match = _NAME.match(location.strip())
    return unescaped(match.group(1)) if match else ""


def unescaped(text: str) -> str:
    """Return an MLIR string with its escapes resolved."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _plain(m[2]), text)


def _plain(letter: str) -> str:
    return {"n": "\n", "t": "\t"}.get(letter, letter)
