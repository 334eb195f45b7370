# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Follow the pages by task: every command is run as written, and its output is compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.docs.doc_runner import Reader

DOCS = Path(__file__).resolve().parents[3] / "docs"
TASKS = sorted((DOCS / "tasks").glob("*.md"))
#: Pages that compare results of this process with those of a command, bit for bit.
OPTIMIZED = ("run",)
EXTRAS = {"check": "torch"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.optimized] if page.stem in OPTIMIZED else [])
        for page in (DOCS / "tour.md", DOCS / "chain.md", *TASKS)
    ],
    ids=lambda page: page.stem,
)
def test_a_task_is_done_as_its_page_shows(reader: Reader, page: Path) -> None:
    if page.stem in EXTRAS:
        pytest.importorskip(EXTRAS[page.stem], reason=f"extra {EXTRAS[page.stem]}")
    assert reader.read(page) >= 2


def test_each_task_begins_with_a_command() -> None:
    assert len(TASKS) >= 5
    for page in TASKS:
        head = page.read_text(encoding="utf-8").partition("\n## ")[0]
        assert "\n$ " in head, page.name
