# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The pictures of the task pages are those that their script draws."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.loaded_script import loaded_script

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs/_static/tasks"
CHEAP = ("module", "run")
OTHERS = ("answer", "fit", "plan", "gpu", "cluster", "serve", "check")


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """``scripts/docs_tools/update_pictures.py`` as a module."""
    return loaded_script("update_pictures")


def test_each_page_shows_its_picture(writer: ModuleType) -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*writer.PICTURES} == {*CHEAP, *OTHERS}
    for page in (ROOT / "docs/tasks").glob("*.md"):
        assert f"](../_static/tasks/{page.stem}.svg)" in page.read_text(encoding="utf-8")
    assert "](docs/_static/tasks/answer.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [*CHEAP, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)]
)
def test_a_picture_is_what_the_script_draws(writer: ModuleType, name: str) -> None:
    if name == "check":
        pytest.importorskip("torch", reason="needs the extra torch")
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == writer.PICTURES[name]()


def test_the_readme_states_the_error_of_the_page_of_accuracy() -> None:
    (error,) = re.findall(
        r"The mean error is ([\d.]+) %, with a bias", (ROOT / "docs/accuracy.md").read_text()
    )
    assert f"the mean error is {error} % for eight measured" in (ROOT / "README.md").read_text()
