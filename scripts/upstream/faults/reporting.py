# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the reproducers share: the virtual workers of the tests beside them, and their last line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import virtual_workers

__all__ = ["report", "state_of", "virtual_workers"]


def state_of(work: Callable[[], bool]) -> str:
    """Return ``ok`` or ``wrong`` as the work says, or the last line of the error it raises.

    A failed assertion is said, and is ``wrong`` too: shards that do not make up a whole.
    """
    try:
        right = work()
    except AssertionError as error:
        print(error)
        return "wrong"
    except Exception as error:
        messages = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"error: {messages[-1] if messages else type(error).__name__}"
    return "ok" if right else "wrong"


def report(reproduce: Callable[[], str]) -> None:
    """Run a reproducer; its last line says the state."""
    print("state:", reproduce(), flush=True)
