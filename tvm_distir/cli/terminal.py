# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the terminal can show."""

from __future__ import annotations

import os
import sys


def wants_colour() -> bool:
    """Whether stdout is a terminal and nobody asked for plain text (``NO_COLOR``, ``TERM``)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def say(message: str) -> None:
    """Print a message to stderr."""
    print(message, file=sys.stderr)
