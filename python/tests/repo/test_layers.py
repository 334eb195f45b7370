# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package: those of the architecture page, imports one way, one door each."""

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


def _read_rooms(text: str) -> list[str]:
    table = re.search(r"^\| room \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, "docs/dev/architecture.md has lost its table of rooms"
    names = [re.match(r"\| `([\w.]+)` \|", line) for line in table[1].splitlines()]
    assert all(names), "a row of the table does not begin with a room's name"
    return [match[1] for match in names if match]


@pytest.fixture(scope="module")
def rooms(root: Path) -> list[str]:
    """Rooms in the order of the table, e.g. ``["errors", "ir", "ir.rewrite", ...]``."""
    return _read_rooms((root / "docs/dev/architecture.md").read_text(encoding="utf-8"))


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    """The module a ``from ... import`` names, e.g. ``~.core.ir`` for ``from ..ir import``."""
    if not node.level:
        return node.module or ""
    words = module.name.split(".")
    up = node.level - (1 if module.is_package else 0)
    words = words[: len(words) - up]
    return ".".join([*words, *([node.module] if node.module else [])])


@dataclass(frozen=True)
class Import:
    """A name that a file takes from a module of the package, also in functions, also for types.

    Attributes
    ----------
    where : str
        ``file:line``.
    here, source : str
        The module that imports, and the one that the statement names.
    name : str or None
        What is taken from it; None for ``import module``.
    """

    where: str
    here: str
    source: str
    name: str | None


def _imports(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(f"{module.path}:{node.lineno}", module.name, alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                yield Import(f"{module.path}:{node.lineno}", module.name, source, alias.name)
        elif isinstance(node, ast.Call) and node.args:
            function, first = node.func, node.args[0]
            called = function.attr if isinstance(function, ast.Attribute) else None
            called = function.id if isinstance(function, ast.Name) else called
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield Import(f"{module.path}:{node.lineno}", module.name, str(first.value), None)


class House:
    """The files of the package and where each name of a door really comes from.

    Parameters
    ----------
    modules : list of Module
    doors : dict from package to {name: module}
        What each ``__init__`` takes from its own files.
    """

    def __init__(self, modules: list[Module], doors: dict[str, dict[str, str]]) -> None:
        self.packages = {module.name for module in modules if module.is_package}
        self.names = {module.name for module in modules}
        self.doors = doors
        found = [found for module in modules for found in _imports(module)]
        self.imports = [i for i in found if i.source.split(".")[0] == PACKAGE]

    def target(self, item: Import) -> str:
        """The file that an import loads a name from, behind all doors."""
        source, name = item.source, item.name
        while name is not None:
            if f"{source}.{name}" in self.names:
                return f"{source}.{name}"
            if source not in self.packages or name not in self.doors.get(source, {}):
                break
            source = self.doors[source][name]
        return source

    def folder(self, module: str) -> str:
        """The package that a module stands in (a package: itself)."""
        return module if module in self.packages else module.rpartition(".")[0]


@pytest.fixture(scope="module")
def house(root: Path, modules: list[Module]) -> House:
    doors: dict[str, dict[str, str]] = {}
    for module in modules:
        if not module.is_package:
            continue
        found = {}
        for path in (root / module.path, (root / module.path).with_suffix(".pyi")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))) if path.exists() else ():
                if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                    for alias in node.names:
                        found[alias.asname or alias.name] = f"{module.name}.{node.module}"
        doors[module.name] = found
    made = House(modules, doors)
    assert len(made.imports) > 500, "hardly any import was found: the walk is broken"
    return made


def _room(module: str, depth: int) -> str:
    return ".".join(module.split(".")[1 : depth + 1])


def test_table_and_folders_are_the_same(rooms: list[str], house: House) -> None:
    """Every folder of the package, and every folder in one, has a row; the table no others."""
    folders = {_room(name, 9) for name in house.packages if 0 < name.count(".") <= 2}
    assert folders == set(rooms)
    assert len(rooms) == len(set(rooms))


def test_imported_names_exist(house: House) -> None:
    assert [i for i in house.imports if i.source not in house.names] == []


def _upward(rooms: list[str], house: House, imports: list[Import]) -> list[str]:
    wrong = []
    for item in imports:
        here, there = house.folder(item.here), house.folder(house.target(item))
        for depth in (1, 2):
            a, b = _room(here, depth), _room(there, depth)
            same_parent = _room(here, depth - 1) == _room(there, depth - 1)
            both = a.count(".") == b.count(".") == depth - 1 and a in rooms and b in rooms
            if same_parent and both and rooms.index(b) > rooms.index(a):
                wrong.append(f"{item.where} imports {item.name}: {b} stands below {a}")
    return wrong


def test_imports_go_one_way(rooms: list[str], house: House) -> None:
    """Between rooms, and between the rooms inside one."""
    assert _upward(rooms, house, house.imports) == []


def test_a_folder_is_entered_through_its_door(house: House) -> None:
    """From outside a folder only its ``__init__`` is asked, for names that it says."""
    wrong = []
    for item in house.imports:
        folder, here = house.folder(item.source), house.folder(item.here)
        inside = here == folder or here.startswith(f"{folder}.")
        if folder == PACKAGE or inside:
            continue
        said = house.doors.get(item.source, {})
        public = item.name in said or f"{item.source}.{item.name}" in house.names
        defined = (item.source, item.name) in _DEFINED_IN_DOORS
        if item.source not in house.packages or not (public or defined):
            wrong.append(f"{item.where} takes {item.name} from {item.source}")
    assert wrong == []


_DEFINED_IN_DOORS: set[tuple[str, str]] = set()
"""Names that an ``__init__`` defines itself; none is needed from outside."""


def test_no_circle_between_files(house: House) -> None:
    """Not through imports in functions or for types either; the doors themselves are no files."""
    graph: dict[str, set[str]] = {}
    for item in house.imports:
        there = house.target(item)
        if item.here not in house.packages and there not in house.packages and there != item.here:
            graph.setdefault(item.here, set()).add(there)
    assert _circles(graph) == []


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Take away files that import nothing that is left; what stays is, or leads to, a circle."""
    left = {name: set(targets) for name, targets in graph.items()}
    while True:
        done = {name for name, targets in left.items() if not targets & left.keys()}
        if not done:
            break
        for name in done:
            del left[name]
    found = []
    for name in sorted(left):
        path, at = [], name
        while at not in path:
            path.append(at)
            at = min(left[at] & left.keys())
        circle = sorted(path[path.index(at) :])
        if circle not in found:
            found.append(circle)
    return found


def test_the_package_itself_is_asked_by_the_command_only(house: House) -> None:
    """It gathers what the rooms define: the others ask the room."""
    users = [
        item.where
        for item in house.imports
        if item.source == PACKAGE
        and f"{PACKAGE}.{item.name}" not in house.names
        and "/cli/" not in item.where
    ]
    assert users == []


@pytest.mark.parametrize(
    ("source", "name", "is_package", "expected"),
    [
        (
            "from ..plan import Plan",
            "tvm_distir.core.ir.mesh",
            False,
            ("tvm_distir.core.plan", "Plan"),
        ),
        ("from .. import plan", "tvm_distir.core.ir.mesh", False, ("tvm_distir", "plan")),
        ("from .. import plan", "tvm_distir.core.ir", True, ("tvm_distir", "plan")),
        ("from ..plan import Plan", "tvm_distir.core.ir", True, ("tvm_distir.core.plan", "Plan")),
        ("from ...plan import P", "tvm_distir.models.zoo", True, ("tvm_distir.core.plan", "P")),
        (
            "def f():\n from tvm_distir import p",
            "tvm_distir.core.ir.mesh",
            False,
            ("tvm_distir", "p"),
        ),
        (
            "if TYPE_CHECKING:\n import tvm_distir.core.plan",
            "t.ir",
            True,
            ("tvm_distir.core.plan", None),
        ),
        (
            "import_module('tvm_distir.core.plan')",
            "tvm_distir.core.ir",
            True,
            ("tvm_distir.core.plan", None),
        ),
    ],
)
def test_the_walk_sees_every_form_of_import(
    source: str, name: str, is_package: bool, expected: tuple[str, str | None]
) -> None:
    from types import SimpleNamespace

    module = SimpleNamespace(name=name, is_package=is_package, tree=ast.parse(source), path="x")
    assert [(i.source, i.name) for i in _imports(module)] == [expected]


def test_wrong_imports_are_found(rooms: list[str], house: House) -> None:
    up = Import(
        "tvm_distir/support/errors/tree.py:1",
        "tvm_distir.support.errors.tree",
        "tvm_distir.interface.command",
        "main",
    )
    assert len(_upward(rooms, house, [up])) == 1
    inner = Import("x:1", "tvm_distir.transforms.outline.x", "tvm_distir.core.passes.lower", "X")
    assert len(_upward(rooms, house, [inner])) == 1
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert _circles({"a": {"b", "c"}, "b": {"c"}}) == []
