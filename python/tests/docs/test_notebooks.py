# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The page on notebooks does what it says, and the notebooks of the examples run."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.docs.loaded_script import loaded_script

if TYPE_CHECKING:
    from tests.docs.doc_runner import Reader

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_true(reader: Reader) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    assert reader.read(ROOT / "docs/notebooks.md") >= 3


NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """``scripts/docs_tools/update_notebooks.py`` as a module."""
    return loaded_script("update_notebooks")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_give(path: Path, writer: ModuleType) -> None:
    """Every cell runs, and what it ends with is what is stored; figures are drawn."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    text = path.read_text(encoding="utf-8")
    assert json.loads(text)["nbformat"] == 4
    anew = writer.regenerate(text)
    assert writer.texts(anew) == writer.texts(text)
    assert anew.count(f'"{writer.IMAGE}"') == text.count(f'"{writer.IMAGE}"') >= 1


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3
