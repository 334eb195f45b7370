# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation fit a phone and a laptop, in a browser where there is one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
READ = ROOT / "docs/_build/html/.doctrees"
"""What ``scripts/docs`` has read of the pages."""


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    """``scripts/checks/pages_in_browser.py`` as a module."""
    path = ROOT / "scripts/checks/pages_in_browser.py"
    spec = importlib.util.spec_from_file_location("pages_in_browser", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def browser(checker: ModuleType) -> str:
    """Path of the browser."""
    path: str | None = checker.find_browser()
    if path is None:
        pytest.skip(f"no browser is installed: {', '.join(checker.BROWSERS)}")
    return path


def test_wide_pages_and_failed_searches_are_reported(
    checker: ModuleType, browser: str, tmp_path: Path
) -> None:
    head = '<!doctype html><meta name="viewport" content="width=device-width">'
    for name, width in {"narrow": "100%", "wide": "700px", "search": "10px"}.items():
        text = f'{head}<div style="width: {width}">text</div>'
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
    lines = checker.faults(tmp_path, browser)
    assert len(lines) == 1 + len(checker.SEARCHES)
    assert lines[0].startswith("wide.html: 7") and lines[0].endswith("in a window of 390 px")
    assert all(line.startswith("search for") for line in lines[1:])


def test_every_page_fits_and_is_found(checker: ModuleType, browser: str, tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="the documentation needs the extra docs")
    if READ.is_dir():  # what has changed since is read anew
        shutil.copytree(READ, tmp_path / READ.name)
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    assert len(list(tmp_path.rglob("*.html"))) > 50
    assert checker.faults(tmp_path, browser) == []
