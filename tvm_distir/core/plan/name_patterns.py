# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Match names of functions, parameters and values with patterns."""

from __future__ import annotations

import fnmatch
import functools
import re

MAIN = "main"


@functools.lru_cache(maxsize=1 << 16)
def plain_name(name: str) -> str:
    """Return the name as TVMScript prints it, with underscores for other characters."""
    return name if name.isascii() and name.isidentifier() else re.sub(r"\W", "_", name)


def is_pattern(name: str) -> bool:
    """Return whether a rule's name is a shell-style pattern."""
    return any(sign in name for sign in "*?[")


def match_name(pattern: str, name: str) -> bool:
    """Return whether a shell-style pattern fits a name, as written or as TVMScript prints it."""
    if fnmatch.fnmatchcase(name, pattern):
        return True
    printed = re.sub(r"[^\w*?!\[\]-]", "_", pattern)
    return fnmatch.fnmatchcase(plain_name(name), printed)
