# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lines of code of the package by folder, and the table of ``docs/dev/weights.md`` about them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

DEPTH = 2
"""Folders below the package down to which code is counted apart."""
START, END = "<!-- table:weights:start -->", "<!-- table:weights:end -->"
_ROW = re.compile(r"^\| `([\w.]+)` \| ([\d,]+) \|$", re.MULTILINE)


def code_lines(source: str) -> int:
    """Count the lines of a module that are no blanks, comments, docstrings or imports."""
    passive: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            text and isinstance(node.value.value, str)
        ):
            passive.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in passive
        for number, line in enumerate(source.splitlines(), 1)
    )


def count_by_folder(package: Path) -> dict[str, int]:
    """Count the lines of code of each folder, down to ``DEPTH``, by its dotted name."""
    counts: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        folders = path.relative_to(package).parent.parts[:DEPTH]
        counts[".".join((package.name, *folders))] += code_lines(path.read_text(encoding="utf-8"))
    return {name: count for name, count in sorted(counts.items()) if count}


def table(counts: dict[str, int]) -> str:
    """Return the rows of the table, without its head."""
    return "".join(f"| `{name}` | {count:,} |\n" for name, count in counts.items())


def stated(page: str) -> dict[str, int]:
    """Read the table of the page."""
    body = page[page.index(START) : page.index(END)]
    return {name: int(count.replace(",", "")) for name, count in _ROW.findall(body)}
