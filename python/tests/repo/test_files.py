# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""House rules that every file of the repository keeps."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import HERE, QUICK

if TYPE_CHECKING:
    from conftest import Module

MOST_LINES = 600
MOST_COLUMNS_OF_PROSE = 110
SOURCES = {
    ".c", ".cc", ".cmake", ".cpp", ".css", ".h", ".hpp", ".js", ".py", ".pyi", ".sh", ".toml",
    ".yaml", ".yml",
}  # fmt: skip
LICENCE = "Licensed under the Apache License, Version 2.0; see LICENSE."
SPDX = "SPDX-License-Identifier: Apache-2.0"
# Absolute paths of a machine that a file was written on; split, so as not to find itself.
MACHINE_PATH = re.compile(r"(?<![\w.\-}])/(?:wo" r"rk|ro" r"ot|opt/(?:pypi|wheels))\b/?")
HOME_PATH = re.compile(r"(?<![\w.\-}])/home/(?!user\b)\w+")


def _is_source(root: Path, path: Path) -> bool:
    if path.suffix in SOURCES or path.name == "CMakeLists.txt":
        return True
    with (root / path).open("rb") as file:
        return file.read(2) == b"#!"


@pytest.fixture(scope="module")
def sources(root: Path, files: list[Path]) -> list[Path]:
    """Files that a person wrote to be run or compiled."""
    return [path for path in files if _is_source(root, path)]


def _text(path: Path) -> str | None:
    """The text of a file; None for a binary one."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_sources_name_their_licence(root: Path, sources: list[Path]) -> None:
    wrong = []
    for path in sources:
        head = (root / path).read_text(encoding="utf-8").splitlines()[:5]
        if not (any(LICENCE in line for line in head) and any(SPDX in line for line in head)):
            wrong.append(str(path))
    assert not wrong


def test_sources_are_short(root: Path, sources: list[Path]) -> None:
    lines = {str(path): (root / path).read_text(encoding="utf-8").count("\n") for path in sources}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def _long_prose(text: str) -> list[int]:
    """Return the numbers of the lines of prose that are too long; code and tables are excepted."""
    fence = None
    numbers = []
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r" *(`{3,}|~{3,})", line)
        if mark is not None and fence is None:
            fence = mark[1]
        elif fence is not None:
            fence = None if line.strip() == fence else fence
        elif len(line) > MOST_COLUMNS_OF_PROSE and not line.lstrip().startswith("|"):
            numbers.append(number)
    return numbers


def test_prose_of_pages_is_wrapped(root: Path, files: list[Path]) -> None:
    """Texts for forums are excepted: those sites show each line break."""
    pages = [p for p in files if p.suffix == ".md" and p.parts[:2] != ("scripts", "upstream")]
    assert len(pages) > 40
    lines = {str(page): _long_prose((root / page).read_text(encoding="utf-8")) for page in pages}
    assert {page: numbers for page, numbers in lines.items() if numbers} == {}


def test_only_long_prose_is_refused() -> None:
    long = "word " * 30
    assert _long_prose(f"short\n{long}\n- {long}\n") == [2, 3]
    assert _long_prose(f"| {long} |\n  | {long} |\n```console\n{long}\n```\n") == []
    assert _long_prose(f"````md\n```\n{long}\n```\n{long}\n````\n{long}\n") == [7]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, HOME_PATH], ids=["machine", "home"])
def test_no_path_of_a_machine(root: Path, files: list[Path], pattern: re.Pattern[str]) -> None:
    wrong = []
    for path in files:
        for number, line in enumerate((_text(root / path) or "").splitlines(), 1):
            match = pattern.search(line)
            if match:
                wrong.append(f"{path}:{number}: {match[0]}")
    assert not wrong


def test_the_pattern_finds_machine_paths() -> None:
    for word in ("work", "root"):
        assert MACHINE_PATH.search(f'open("/{word}/main/x")')
        assert MACHINE_PATH.search(f"cd /{word}")
        assert not MACHINE_PATH.search(f"frame{word}/x net/{word}/x ${{a}}/{word}/x")


def test_texts_end_with_one_newline(root: Path, files: list[Path]) -> None:
    wrong = []
    for path in files:
        text = _text(root / path)
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            wrong.append(str(path))
    assert not wrong


def test_scripts_can_be_run(root: Path, files: list[Path]) -> None:
    scripts = [path for path in files if path.parts[0] in ("scripts", ".ci") and not path.suffix]
    assert {path.name for path in scripts} >= {"setup", "demo", "test", "docs", "run"}
    for path in scripts:
        assert os.access(root / path, os.X_OK), path
        assert "set -euo pipefail" in (root / path).read_text(encoding="utf-8"), path


def test_no_function_is_defined_twice_at_the_top_of_a_file(root: Path, files: list[Path]) -> None:
    """Ruff takes a call between the two definitions for a use of the first."""
    wrong = []
    for path in files:
        if path.suffix == ".py" and path.parts[0] in (
            "tvm_distir",
            "tvm_distir_command",
            "scripts",
        ):
            body = ast.parse((root / path).read_text(encoding="utf-8")).body
            plain = [
                node.name
                for node in body
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list
            ]
            wrong += [f"{path}: {name}" for name in set(plain) if plain.count(name) > 1]
    assert not wrong


def test_folders_say_what_they_hold(modules: list[Module]) -> None:
    packages = {module.path.parent for module in modules if module.is_package}
    assert packages == {module.path.parent for module in modules}, "a folder has no __init__.py"
    for module in modules:
        if module.is_package:
            docstring = ast.get_docstring(module.tree)
            assert docstring, f"{module.path} has no docstring"
            assert docstring.split("\n\n")[0].rstrip().endswith("."), f"{module.path}: no sentence"


def test_quick_tests_exist() -> None:
    assert [name for name in QUICK if not (HERE / name).exists()] == []
