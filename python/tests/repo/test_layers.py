# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The wings of the package: those of the architecture page; imports go down, through faces."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.repo.conftest import Module

PACKAGE = "tvm_distir"
WINGS = (
    "support", "core", "transforms", "models", "performance", "planning", "execution", "interface",
)  # fmt: skip

ENTERED = {"execution.runtime.collectives"}
"""Folders whose modules other wings import: Disco's workers load the packed functions lazily."""


@dataclass(frozen=True)
class Import:
    """A name that a file imports from a module of the package, also in functions and for types."""

    where: str
    importer: str
    module: str
    name: str | None


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    """Return the module that a ``from ... import`` names, ``tvm_distir.core.ir`` for ``..ir``."""
    if not node.level:
        return node.module or ""
    words = module.name.split(".")
    words = words[: len(words) - node.level + module.is_package]
    return ".".join([*words, *([node.module] if node.module else [])])


def _imports(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        where = f"{module.path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(where, module.name, alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(where, module.name, _absolute(module, node), alias.name)


class Package:
    """The modules of the package, and where each name of a face is defined."""

    def __init__(self, root: Path, modules: Iterable[Module]) -> None:
        modules = list(modules)
        self.names = {module.name for module in modules}
        self.folders = {module.name for module in modules if module.is_package}
        self.faces = {
            module.name: _face(module.name, (root / module.path).with_suffix(".pyi"))
            for module in modules
            if module.is_package
        }
        found = [item for module in modules for item in _imports(module)]
        self.imports = [i for i in found if i.module.split(".")[0] == PACKAGE]

    def definition(self, item: Import) -> str:
        """Return the module that defines what is imported, behind all faces."""
        module, name = item.module, item.name
        while name is not None:
            if f"{module}.{name}" in self.names:
                return f"{module}.{name}"
            if name not in self.faces.get(module, {}):
                break
            module = self.faces[module][name]
        return module

    def folder(self, module: str) -> str:
        """Return the folder of a wing that a module is in, ``core.ir``; a file beside: itself."""
        return ".".join(module.split(".")[1:3])


def _face(package: str, stub: Path) -> dict[str, str]:
    if not stub.exists():
        return {}
    return {
        alias.asname or alias.name: f"{package}.{node.module}" if node.module else package
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.fixture(scope="module")
def package(root: Path, modules: list[Module]) -> Package:
    package = Package(root, modules)
    assert len(package.imports) > 3000, "hardly any import was found: the walk is broken"
    return package


def _wing(module: str) -> str:
    words = module.split(".")
    return words[1] if len(words) > 1 and words[1] in WINGS else ""


def _upward(package: Package, imports: Iterable[Import]) -> list[str]:
    wrong = []
    for item in imports:
        importer, imported = _wing(item.importer), _wing(package.definition(item))
        if importer and imported and WINGS.index(imported) > WINGS.index(importer):
            wrong.append(f"{item.where} imports {item.name} of {imported}")
    return wrong


def _beside_faces(package: Package, imports: Iterable[Import]) -> list[str]:
    wrong = []
    for item in imports:
        importer, imported = _wing(item.importer), _wing(item.module)
        if not importer or not imported or importer == imported:
            continue
        if item.module == f"{PACKAGE}.{imported}" and item.name in package.faces[item.module]:
            continue
        if f"{item.module}.{item.name}" in package.names and item.module in package.folders:
            continue  # a whole module or folder, whose names stand beside its own
        if item.module.removeprefix(f"{PACKAGE}.") in ENTERED:
            continue
        wrong.append(f"{item.where} imports {item.name} from {item.module}")
    return wrong


def test_the_architecture_page_names_all_folders(root: Path, package: Package) -> None:
    text = (root / "docs/dev/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)
    folders = {".".join(f.split(".")[1:]) for f in package.folders if 0 < f.count(".") <= 2}
    assert sorted(rows) == sorted(folders)
    assert [row for row in rows if "." not in row] == list(WINGS)


def test_every_wing_has_a_readme(root: Path) -> None:
    for wing in WINGS:
        text = (root / PACKAGE / wing / "README.md").read_text(encoding="utf-8")
        assert text.count("\n") <= 30, wing


def test_imports_between_wings_go_down(package: Package) -> None:
    assert _upward(package, package.imports) == []


def test_wings_are_entered_through_their_faces(package: Package) -> None:
    assert _beside_faces(package, package.imports) == []


def test_no_circle_between_files_or_folders(package: Package) -> None:
    """Not through imports in functions or for types either; faces themselves are no files."""
    files: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    for item in package.imports:
        there = package.definition(item)
        if there in package.folders or item.importer in package.folders or there == item.importer:
            continue
        files.setdefault(item.importer, set()).add(there)
        a, b = package.folder(item.importer), package.folder(there)
        if a != b:
            folders.setdefault(a, set()).add(b)
    assert _circular(files) == set()
    assert _circular(folders) == set()


def _circular(graph: dict[str, set[str]]) -> set[str]:
    """Return the nodes that are on a circle, or lead to one."""
    rest = {name: set(targets) for name, targets in graph.items()}
    while True:
        done = {name for name, targets in rest.items() if not targets & rest.keys()}
        if not done:
            return set(rest)
        for name in done:
            del rest[name]


def test_the_package_itself_is_imported_by_the_command_only(package: Package) -> None:
    """It gathers what the wings define: the others ask the wing."""
    users = [
        item.where
        for item in package.imports
        if item.module == PACKAGE
        and f"{PACKAGE}.{item.name}" not in package.names
        and "/interface/command/" not in item.where
    ]
    assert users == []


def test_wrong_imports_are_found(package: Package) -> None:
    core = "tvm_distir.core.ir.mesh"
    planted = Import("x:1", core, "tvm_distir.planning.search.driver", "search")
    assert len(_upward(package, [planted])) == 1
    assert len(_beside_faces(package, [planted])) == 1
    inner = Import("x:1", "tvm_distir.interface.command.run", core, "device_mesh")
    assert _beside_faces(package, [inner]) == ["x:1 imports device_mesh from " + core]
    assert _circular({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"c"}}) == {"a", "b", "c", "d"}
    assert _circular({"a": {"b", "c"}, "b": {"c"}}) == set()
