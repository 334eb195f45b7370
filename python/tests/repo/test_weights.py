# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The code of each folder has the lines that ``docs/dev/weights.md`` states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.code_lines import code_lines, count_by_folder, stated, table
from tests.repo.conftest import PACKAGE

PAGE = "docs/dev/weights.md"
BUDGET = 96_000
"""The most lines of code that the package may have."""
REMEDY = "scripts/docs_tools/update_weights.py writes the table; say in the commit what grew"

SAMPLE = '''"""A module.

Of two lines.
"""

# A comment.
import os
from pathlib import (
    Path,
)

LIMIT = 3  # with a comment behind
"""What it limits."""


def size(path: Path) -> int:
    """Return a size."""
    text = """counted,
    as a value"""
    return len(text) + os.stat(
        path
    ).st_size
'''


def test_what_counts_as_code() -> None:
    assert code_lines(SAMPLE) == 7


@pytest.fixture(scope="module")
def counts(root: Path) -> dict[str, int]:
    return count_by_folder(root / PACKAGE)


def test_the_table_is_read_as_it_is_written() -> None:
    counts = {"a": 1, "a.b": 12_345}
    page = f"text\n<!-- table:weights:start -->\n{table(counts)}<!-- table:weights:end -->\n"
    assert stated(page) == counts


def test_no_folder_outgrows_its_line(root: Path, counts: dict[str, int]) -> None:
    lines = stated((root / PAGE).read_text(encoding="utf-8"))
    assert set(counts) == set(lines), REMEDY
    grown = {name: (lines[name], n) for name, n in counts.items() if n > lines[name]}
    assert not grown, REMEDY


def test_the_table_follows_removals(root: Path, counts: dict[str, int]) -> None:
    """A line that is far above its folder would let the folder grow unseen."""
    lines = stated((root / PAGE).read_text(encoding="utf-8"))
    stale = {name: (lines[name], n) for name, n in counts.items() if lines[name] > n * 1.05 + 20}
    assert not stale, REMEDY


def test_the_package_keeps_its_budget(counts: dict[str, int]) -> None:
    assert sum(counts.values()) <= BUDGET
