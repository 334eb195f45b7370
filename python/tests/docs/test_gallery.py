# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The gallery shows the commands of its script, and what they answer."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.loaded_script import loaded_script

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/gallery.md"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """``scripts/docs_tools/update_gallery.py`` as a module."""
    return loaded_script("update_gallery")


def test_the_page_shows_each_recipe_of_the_script(
    writer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the predicted numbers, which take a minute, are written anew and compared."""
    text = PAGE.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line[:2] == "| "}
    monkeypatch.setattr(writer.Recipe, "predict", lambda recipe: {})
    monkeypatch.setattr(
        writer, "_row", lambda recipe, answer: rows[recipe.title][2:-2].split(" | ")
    )
    assert writer.regenerate(text) == text
    assert len(writer.RECIPES) >= 8


def test_a_row_is_what_its_command_answers(writer: ModuleType) -> None:
    if shutil.which("tvm-distir", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("tvm_distir is not installed: scripts/setup test")
    (recipe,) = (recipe for recipe in writer.RECIPES if "U-Net" in recipe.title)
    cells = writer._row(recipe, recipe.predict())
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8").splitlines()
