# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The table of error codes and the code that raises them agree."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tvm_distir.support import errors

if TYPE_CHECKING:
    from conftest import Module

CODE = re.compile(r"DIST\d{4}")
TABLE = Path("tvm_distir/support/errors/codes.json")
# The range of each class (docs/dev/architecture.md, "errors").
RANGES = {
    "DependencyError": r"01(?![56])",
    "UsageError": r"015",
    "OutputError": r"016",
    "MeshError": r"02[01]",
    "PlanError": r"02[2-9]",
    "ModelError": r"03",
    "PropagationError": r"04[0-4]",
    "LevelError": r"045",
    "LoweringError": r"05",
    "EngineError": r"06(?!9[012])",
    "MismatchError": r"069[01]",
    "WrongProgramError": r"069[23]",
    "HardwareError": r"07",
    "SimulationError": r"07",
    "InfeasibleError": r"08",
    "InternalError": r"09",
}


@pytest.fixture(scope="module")
def listed(root: Path) -> list[str]:
    """The codes as they are written in the table; a dictionary would hide a code given twice."""
    return re.findall(r'^    "(\w+)": ', (root / TABLE).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def used(root: Path, modules: list[Module]) -> dict[str, str]:
    """Codes that stand alone in a string, of Python or C++, with one place of each."""
    matches: dict[str, str] = {}
    for source in (root / "passes").rglob("*.cc"):
        for text in re.findall(r'"([^"\n]*)"', source.read_text(encoding="utf-8")):
            if CODE.fullmatch(text):
                matches.setdefault(text, source.name)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if CODE.fullmatch(node.value):
                    matches.setdefault(node.value, f"{module.path}:{node.lineno}")
    return matches


def test_codes_are_unique_and_sorted(listed: list[str]) -> None:
    assert [code for code, count in Counter(listed).items() if count > 1] == []
    assert listed == sorted(listed)
    assert all(CODE.fullmatch(code) for code in listed)
    assert set(listed) == set(errors.CODES)


def test_meanings_are_one_line_each() -> None:
    for code, meaning in errors.CODES.items():
        assert meaning.strip() == meaning and meaning and "\n" not in meaning, code
    assert len(set(errors.CODES.values())) == len(errors.CODES)


def test_used_codes_are_listed(listed: list[str], used: dict[str, str]) -> None:
    assert {code: place for code, place in used.items() if code not in listed} == {}


def test_listed_codes_are_used(listed: list[str], used: dict[str, str]) -> None:
    assert [code for code in listed if code not in used] == []


def test_codes_named_in_texts_are_listed(root: Path, files: list[Path], listed: list[str]) -> None:
    """Docstrings, documentation, C++ and messages name no code that does not exist."""
    wrong = []
    for path in files:
        if path.parts[0] in ("tvm_distir", "passes") or path.suffix == ".md":
            try:
                text = (root / path).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            wrong += [f"{path}: {code}" for code in CODE.findall(text) if code not in listed]
    assert wrong == []


def test_ranges_cover_the_tree() -> None:
    tree = {
        name
        for name in errors.__all__
        if isinstance(value := getattr(errors, name), type)
        and issubclass(value, errors.DistIRError)
    }
    assert tree - {"DistIRError"} == set(RANGES)


def test_codes_are_raised_by_the_class_of_their_range(modules: list[Module]) -> None:
    wrong, seen = [], 0
    for module in modules:
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            name = node.func.id if isinstance(node.func, ast.Name) else name
            code = node.args[0]
            if name not in RANGES or not isinstance(code, ast.Constant):
                continue
            if isinstance(code.value, str) and CODE.fullmatch(code.value):
                seen += 1
                if not re.match(RANGES[name], code.value.removeprefix("DIST")):
                    wrong.append(f"{module.path}:{node.lineno}: {name} with {code.value}")
    assert seen > 20, "hardly any error was found: the walk is broken"
    assert wrong == []
