# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts that write parts of pages anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "python")]  # tvm_distir of this checkout, and tests


def rewrite_pages(
    description: str,
    root: Path,
    names: Iterable[str],
    regenerate: Callable[[str], str],
    compared: Callable[[str], str] = str,
) -> int:
    """Rewrite pages, or with ``--check`` tell which are out of date; return the exit code.

    Parameters
    ----------
    description : str
        What the script does, for ``--help``.
    root : Path
    names : iterable of str
        The pages, below ``root``.
    regenerate : callable
        A page's text with its parts written anew.
    compared : callable
        What of a text counts in the comparison.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    check = parser.parse_args().check
    stale = []
    for name in names:
        path = root / name
        old = path.read_text(encoding="utf-8")
        new = regenerate(old)
        if compared(old) == compared(new):
            continue
        stale.append(name)
        if not check:
            path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date' if check else 'rewritten'}", file=sys.stderr)
    return int(check and bool(stale))
