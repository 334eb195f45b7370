# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Imports between the folders of the package go one way, as the table of the architecture says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Module

PACKAGE = "tvm_distir"
FACADE = "__init__"


@pytest.fixture(scope="module")
def ranks(root: Path) -> dict[str, int]:
    """Row of each folder in the table, from the top."""
    text = (root / "docs/dev/architecture.md").read_text(encoding="utf-8")
    table = re.search(r"^\| folder / module \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, "docs/dev/architecture.md has lost its table of folders"
    names = [re.match(r"\| `(\w+)` \|", line) for line in table[1].splitlines()]
    assert all(names), "a row of the table does not begin with a folder's name"
    return {match[1]: row for row, match in enumerate(names) if match}


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    """The module a ``from ... import`` names, e.g. ``tvm_distir.ir`` for ``from ..ir import``."""
    if not node.level:
        return node.module or ""
    words = module.name.split(".")
    up = node.level - (1 if module.is_package else 0)
    words = words[: len(words) - up]
    return ".".join([*words, *([node.module] if node.module else [])])


def _imported(module: Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports: also in functions, also for types only."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                dotted = f"{source}.{alias.name}"
                yield node.lineno, dotted if dotted in known else source
        elif isinstance(node, ast.Call) and node.args:
            function, first = node.func, node.args[0]
            called = function.attr if isinstance(function, ast.Attribute) else None
            called = function.id if isinstance(function, ast.Name) else called
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def _place(name: str) -> str | None:
    """The folder that a name of the package stands in; None for a name of another package.

    Files beside the folders (``_versions``, ``autoload``) give their own name, the package itself
    gives ``FACADE``.
    """
    words = name.split(".")
    if words[0] != PACKAGE:
        return None
    return words[1] if len(words) > 1 else FACADE


def test_table_and_folders_are_the_same(ranks: dict[str, int], modules: list[Module]) -> None:
    folders = {module.path.parts[1] for module in modules if len(module.path.parts) > 2}
    assert folders == set(ranks)


@dataclass(frozen=True)
class Edge:
    """One import of a name of the package, between two of its folders or files beside them."""

    where: str
    here: str
    there: str
    name: str


@pytest.fixture(scope="module")
def edges(modules: list[Module]) -> list[Edge]:
    """All imports that leave a folder."""
    known = {module.name for module in modules}
    found = []
    for module in modules:
        here = _place(module.name)
        for line, name in _imported(module, known):
            there = _place(name)
            if here is not None and there is not None and there != here:
                found.append(Edge(f"{module.path}:{line}", here, there, name))
    assert len(found) > 50, "hardly any import was found: the walk is broken"
    return found


@pytest.fixture(scope="module")
def all_ranks(ranks: dict[str, int], edges: list[Edge]) -> dict[str, int]:
    """Rows of the folders, and of each file beside them the lowest row that it imports."""
    found = dict(ranks)
    for edge in edges:
        if edge.here not in ranks and edge.there in ranks:
            found[edge.here] = max(found.get(edge.here, 0), ranks[edge.there])
    return found


def test_imported_modules_exist(modules: list[Module], edges: list[Edge]) -> None:
    known = {module.name for module in modules}
    assert [f"{edge.where} imports {edge.name}" for edge in edges if edge.name not in known] == []


def test_imports_go_one_way(all_ranks: dict[str, int], edges: list[Edge]) -> None:
    wrong = [
        f"{edge.where} imports {edge.name}: {edge.there} stands below {edge.here}"
        for edge in edges
        if edge.there != FACADE
        and edge.here != FACADE
        and all_ranks.get(edge.there, 0) > all_ranks.get(edge.here, 0)
    ]
    assert wrong == []


def test_the_package_itself_is_asked_by_the_command_only(edges: list[Edge]) -> None:
    """It gathers what the folders define: the others ask the folder."""
    users = {edge.where: edge.name for edge in edges if edge.there == FACADE}
    assert {where: name for where, name in users.items() if "/cli/" not in where} == {}


@pytest.mark.parametrize(
    ("source", "name", "is_package", "expected"),
    [
        ("from ..plan import Plan", "tvm_distir.ir.mesh", False, "tvm_distir.plan"),
        ("from .. import plan", "tvm_distir.ir.mesh", False, "tvm_distir.plan"),
        ("from .. import plan", "tvm_distir.ir", True, "tvm_distir.plan"),
        ("from ..plan import Plan", "tvm_distir.ir", True, "tvm_distir.plan"),
        ("from ...plan import Plan", "tvm_distir.frontend.zoo", True, "tvm_distir.plan"),
        ("def f():\n from tvm_distir import plan", "tvm_distir.ir.mesh", False, "tvm_distir.plan"),
        ("if TYPE_CHECKING:\n import tvm_distir.plan", "tvm_distir.ir", True, "tvm_distir.plan"),
        ("import_module('tvm_distir.plan')", "tvm_distir.ir", True, "tvm_distir.plan"),
        ("from .. import __version__", "tvm_distir.cli.app", False, "tvm_distir"),
    ],
)
def test_the_walk_sees_every_form_of_import(
    source: str, name: str, is_package: bool, expected: str
) -> None:
    from types import SimpleNamespace

    module = SimpleNamespace(name=name, is_package=is_package, tree=ast.parse(source))
    found = [dotted for _, dotted in _imported(module, {"tvm_distir", "tvm_distir.plan"})]
    assert found == [expected]


def test_a_wrong_import_is_found(all_ranks: dict[str, int]) -> None:
    wrong = Edge("tvm_distir/errors/tree.py:1", "errors", "cli", "tvm_distir.cli")
    with pytest.raises(AssertionError, match="cli stands below errors"):
        test_imports_go_one_way(all_ranks, [wrong])
