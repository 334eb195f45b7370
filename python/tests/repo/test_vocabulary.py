# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hold names and docstrings of the package to the vocabulary of the field."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.repo.conftest import Module

SHARED_CLASS_NAMES: frozenset[str] = frozenset()
"""Class names that may have more than one meaning; at most five."""
MOST_SHARED_CLASS_NAMES = 5
MOST_SHARED_FILE_NAMES = 8
MOST_VAGUE_WORDS = 400
VAGUE_NAMES = frozenset(
    "asked found given gone held kept made one own said spent taken there told took wanted".split()
)
"""Participles and pronouns that are no names of variables and parameters."""
VAGUE = re.compile(r"\b(?:one|found|own)\b")
FRAGMENT = re.compile(
    r"(?:Those|That|These|Which|Who|Whose|What|How|Why|When|Where|If|Of|As|So|By|In|On|At|With"
    r"|Without|From|To|Per|Into|Up|Over|Behind|Between|Before|After|Within|Here|Else|Not|Nothing"
    r"|Also|Its|Their|Them|It|The one|The ones|In words)\b"
)
"""First words of summaries that are no sentence and no noun phrase with a subject."""
PRIVATE_WORDS = Path(__file__).with_name("private_words.tsv")


@pytest.fixture(scope="module")
def classes(modules: list[Module]) -> dict[str, list[str]]:
    """Return the files that define each public class of the package."""
    files: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(module.path))
    return files


def _vague_words(text: str, tree: ast.Module) -> int:
    """Count vague words in the names, comments and texts of a file, without its docstrings."""
    documentation = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return len(VAGUE.findall(text)) - sum(len(VAGUE.findall(part)) for part in documentation)


def _summaries(module: Module) -> Iterator[tuple[str, str]]:
    """Yield the place and the first paragraph of each docstring of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield f"{module.path}:{getattr(node, 'lineno', 1)}", text.split("\n\n")[0]


def _fault(summary: str) -> str | None:
    """Return why a summary is no sentence, as far as its form shows."""
    if re.match(r"[A-Z`\d(\[*]", summary) is None:
        return "begins with a small letter"
    if FRAGMENT.match(summary):
        return "begins as a fragment"
    if re.search(r"[.:?!)`]$", summary.strip()) is None:
        return "ends without punctuation"
    return None


def _bound_name(node: ast.AST) -> str:
    """Return the name of a variable that a node binds, or an empty text."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def test_public_class_names_have_a_single_meaning(classes: dict[str, list[str]]) -> None:
    shared = {name: files for name, files in classes.items() if len(files) > 1}
    assert len(SHARED_CLASS_NAMES) <= MOST_SHARED_CLASS_NAMES
    assert {name: files for name, files in shared.items() if name not in SHARED_CLASS_NAMES} == {}


def test_the_list_of_shared_class_names_is_needed(classes: dict[str, list[str]]) -> None:
    assert [name for name in sorted(SHARED_CLASS_NAMES) if len(classes[name]) < 2] == []


def test_few_file_names_are_in_three_folders(modules: list[Module]) -> None:
    folders: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        if not module.path.name.startswith("__"):
            folders[module.path.name].append(str(module.path.parent))
    shared = {name: places for name, places in folders.items() if len(places) >= 3}
    assert len(shared) <= MOST_SHARED_FILE_NAMES, shared


def test_no_public_name_is_a_private_word(modules: list[Module]) -> None:
    lines = PRIVATE_WORDS.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    terms = {(kind, name): term for name, kind, term in rows}
    assert len(terms) == len(rows) > 90
    assert {kind for kind, _ in terms} == {"class", "function", "module"}
    defined: list[tuple[str, str, Path]] = []
    for module in modules:
        defined.append(("module", module.name.rpartition(".")[2], module.path))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                defined.append(("class", node.name, module.path))
            elif isinstance(node, ast.FunctionDef):
                defined.append(("function", node.name, module.path))
    faults = {
        f"{path}: {kind} {name}": terms[kind, name]
        for kind, name, path in defined
        if (kind, name) in terms
    }
    assert faults == {}


def test_vague_words_are_rare_in_code(root: Path, modules: list[Module]) -> None:
    texts = ((root / module.path).read_text(encoding="utf-8") for module in modules)
    counts = [_vague_words(text, module.tree) for text, module in zip(texts, modules, strict=True)]
    assert sum(counts) < MOST_VAGUE_WORDS


def test_summaries_are_sentences(modules: list[Module]) -> None:
    faults = {
        f"{place} {fault}": summary
        for module in modules
        for place, summary in _summaries(module)
        if (fault := _fault(summary)) is not None
    }
    assert faults == {}


@pytest.mark.parametrize(
    ("summary", "fault"),
    [
        ("Return the devices of each group.", None),
        ("``measure``: time the kernels.", None),
        ("return the devices.", "begins with a small letter"),
        ("Those of some axes, which are kept.", "begins as a fragment"),
        ("Itself is no fragment by its first word.", None),
        ("Return the devices", "ends without punctuation"),
    ],
)
def test_fragments_are_recognized(summary: str, fault: str | None) -> None:
    assert _fault(summary) == fault


def test_vague_words_are_counted_outside_of_docstrings() -> None:
    code = '"""The one found."""\n\n\ndef f(own):\n    """Its own."""\n    return own  # one\n'
    assert _vague_words(code, ast.parse(code)) == len(["own", "own", "one"])


def test_variables_are_named_by_nouns(modules: list[Module]) -> None:
    names = [
        f"{module.path}:{node.lineno} {name}"
        for module in modules
        for function in ast.walk(module.tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
        for name in [_bound_name(node)]
        if name in VAGUE_NAMES
    ]
    assert sorted(set(names)) == []
