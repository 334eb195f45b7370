# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read user input: suggest similar names, and check integers against bounds."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

from tvm_distir.support.errors.tree import UsageError

MAX_INT = 2**31 - 1
"""The largest size of an axis, a dim or a batch that is read: TVM keeps extents in 64 bits, and
bytes are products of several."""

MAX_DEVICES = 2**17
"""The most devices of a mesh; device ids are smaller."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name nearest to ``name``, whatever the case; None where none is near.

    ``cutoff``: the least similarity, from 0 to 1 for equal names.
    """
    names = {valid.lower(): valid for valid in sorted(known, reverse=True)}
    close = difflib.get_close_matches(shortened(name).lower(), sorted(names), n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean "x"?`` for the known name nearest to ``name``, or the list.

    Parameters
    ----------
    name : str
        The unknown name.
    known : iterable of str
        The valid names.
    """
    names = sorted(known)
    close = closest(name, names)
    if close is not None:
        return f'Did you mean "{close}"?'
    return f"Known: {', '.join(names)}." if names else "None is known."


def check_choice(word: str, kind: str, choices: Iterable[str], location: str) -> None:
    """Refuse a word that is none of the choices (UsageError DIST0152).

    ``kind``: what the choices are, as in ``there is no form "toml"``.

    Examples
    --------
    >>> check_choice("toml", "form", ("json",), "-o")
    Traceback (most recent call last):
    ...
    tvm_distir.support.errors.tree.UsageError: DIST0152 -o: there is no form "toml" [Known: json.]
    """
    known = tuple(choices)
    if word not in known:
        problem = f'there is no {kind} "{shortened(word)}"'
        raise UsageError("DIST0152", problem, location=location, remedy=nearest(word, known))


def parse_int(text: str, least: int = 0, most: int = MAX_INT) -> int | None:
    """Read an integer in decimal digits; None where it is none, or out of bounds.

    Examples
    --------
    >>> parse_int("12"), parse_int("-1"), parse_int("9" * 5000), parse_int("²")
    (12, None, None, None)
    """
    word = text.strip()
    if not _INTEGER.fullmatch(word):
        return None
    number = int(word)
    return number if least <= number <= most else None


def parse_float(text: str) -> float:
    """Read a number, as Python writes it; NaN where it is none.

    Examples
    --------
    >>> parse_float("1e3"), parse_float("fast")
    (1000.0, nan)
    """
    try:
        return float(text)
    except ValueError:
        return math.nan


def shortened(value: object, most: int = 60) -> str:
    """Return user input for a message, with the middle of a long text left out.

    Integers of thousands of digits, which Python refuses to write, are reported by their length.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**most:
        return f"an integer of {value.bit_length() * 30103 // 100000 + 1} digits"
    text = str(value)
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}...{text[-half:]} ({len(text)} characters)"


_UNUSUAL = re.compile(r"[^ -~]")


def printable(text: str, allowed: str = "") -> str:
    """Return a text without terminal control characters, except for those in ``allowed``."""

    def shown(match: re.Match[str]) -> str:
        char = match.group()
        return char if char.isprintable() or char in allowed else f"\\x{ord(char):02x}"

    return _UNUSUAL.sub(shown, text)
