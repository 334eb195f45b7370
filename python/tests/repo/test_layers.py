# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The wings of the package: the table of the architecture page, and which file may import what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.repo.conftest import Module

PACKAGE = "tvm_distir"
TABLE = Path("docs/dev/architecture.md")
ROOMY = "core"
"""The wing whose rooms have faces of their own, in place of one for all."""
MOST_NAMES = 60
"""Names that a face of a room may have."""
EXCEPTIONS = {
    # Replaces a placeholder by the packed function of its name when compiled code first calls one.
    ("tvm_distir.interface.autoload", "tvm_distir.execution.runtime.collectives", "ccl"),
}
"""Imports from outside of a wing that bypass its face: importing module, source, name."""


@dataclass(frozen=True)
class Import:
    """A name that a file of the package imports, also inside of functions and for types.

    Attributes
    ----------
    location : str
        ``file:line``.
    module, source : str
        The module that imports, and the module that the statement names.
    name : str or None
        The imported name; None for ``import module``.
    """

    location: str
    module: str
    source: str
    name: str | None


def _imports(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        pairs: list[tuple[str, str | None]] = []
        if isinstance(node, ast.Import):
            pairs = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module.name.split(".")
            up = node.level - (1 if module.is_package else 0)
            base = parents[: len(parents) - up] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            pairs = [(source, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args:
            function = ast.unparse(node.func).rpartition(".")[2]
            if function in ("import_module", "__import__") and isinstance(
                node.args[0], ast.Constant
            ):
                pairs = [(str(node.args[0].value), None)]
        for source, name in pairs:
            if source.split(".")[0] == PACKAGE:
                yield Import(f"{module.path}:{node.lineno}", module.name, source, name)


def _wing(module: str) -> str:
    """The wing of a module; the empty string for the files of the package itself."""
    return module.split(".")[1] if "." in module else ""


class Package:
    """The files of the package, their imports, and the faces of the wings.

    Parameters
    ----------
    modules : list of Module
    faces : dict from package to {name: module}
        The names in the stub of each package that has one, and the modules that define them.
    rows : list of str
        Folders of the table, e.g. ``["support", "support.errors", ...]``.
    """

    def __init__(
        self, modules: list[Module], faces: dict[str, dict[str, str]], rows: list[str]
    ) -> None:
        self.names = {module.name for module in modules}
        self.packages = {module.name for module in modules if module.is_package}
        self.faces, self.rows = faces, rows
        self.wings = [row for row in rows if "." not in row]
        self.imports = [item for module in modules for item in _imports(module)]

    def target(self, item: Import) -> str:
        """The module that an import loads, or that defines its name."""
        full = f"{item.source}.{item.name}"
        if full in self.names:
            return full
        if item.name is not None:
            return self.faces.get(item.source, {}).get(item.name, item.source)
        return item.source

    def folder(self, module: str) -> str:
        """The folder of a module without the package's name, e.g. ``core.ops``."""
        folder = module if module in self.packages else module.rpartition(".")[0]
        return folder.partition(".")[2]

    def fault(self, item: Import) -> str | None:
        """Say which rule of the architecture page an import violates."""
        here, present = _wing(item.module), _wing(item.source)
        if item.module == PACKAGE:
            return None
        if item.source == PACKAGE and f"{PACKAGE}.{item.name}" not in self.names:
            return None if here == "interface" else "only the interface asks the package itself"
        if present not in self.wings:
            return "no wing"
        is_module = item.name is None or f"{item.source}.{item.name}" in self.names
        in_package = item.source in self.packages and item.source != item.module
        if here == present:
            return "not the file that defines it" if in_package and not is_module else None
        if here in self.wings and self.wings.index(present) > self.wings.index(here):
            return f"{present} is not below {here}"
        if is_module:
            folder = item.source.partition(".")[2]
            seen = folder in self.rows or item.source in self.faces
            return None if item.name and seen else "a module of an inner folder"
        if present != ROOMY and item.source != f"{PACKAGE}.{present}":
            return f"not a name of the face {PACKAGE}.{present}"
        face = item.name in self.faces.get(item.source, {})
        return None if face else f"not a name of the face {item.source}"

    def faults(self, items: Iterable[Import]) -> list[str]:
        """All violations, except those of :data:`EXCEPTIONS`."""
        judged = ((item, self.fault(item)) for item in items)
        return [
            f"{item.location} imports {item.name} from {item.source}: {fault}"
            for item, fault in judged
            if fault and (item.module, item.source, item.name) not in EXCEPTIONS
        ]

    def folder_graph(self) -> dict[str, set[str]]:
        """Per folder the folders beside it that its files, at any depth, import from."""
        graph: dict[str, set[str]] = {}
        for item in self.imports:
            a, b = self.folder(item.module).split("."), self.folder(self.target(item)).split(".")
            depth = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), 0)
            if depth:
                a_name, b_name = (".".join(words[: depth + 1]) for words in (a, b))
                graph.setdefault(a_name, set()).add(b_name)
        return graph

    def file_graph(self) -> dict[str, set[str]]:
        """Per file the files that it imports, faces resolved."""
        graph: dict[str, set[str]] = {}
        for item in self.imports:
            target = self.target(item)
            if not {item.module, target} & self.packages and target != item.module:
                graph.setdefault(item.module, set()).add(target)
        return graph


@pytest.fixture(scope="module")
def package(root: Path, modules: list[Module]) -> Package:
    faces: dict[str, dict[str, str]] = {}
    for stub in sorted((root / PACKAGE).glob("*/**/__init__.pyi")):
        package_name = ".".join(stub.parent.relative_to(root).parts)
        face = faces.setdefault(package_name, {})
        for node in ast.parse(stub.read_text("utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                source = ".".join([package_name, *filter(None, [node.module])])
                for alias in node.names:
                    is_module = f"{source}.{alias.name}" in {m.name for m in modules}
                    face[alias.name] = f"{source}.{alias.name}" if is_module else source
    table = re.search(
        r"^\| folder \|.*\n\|[-|]+\|\n((?:\|.*\n)+)",
        (root / TABLE).read_text("utf-8"),
        re.MULTILINE,
    )
    assert table is not None, f"{TABLE} has lost its table of folders"
    rows = [re.match(r"\| `([\w.]+)` \| \w", line) for line in table[1].splitlines()]
    assert all(rows), "a row of the table has no folder or no purpose"
    package = Package(modules, faces, [row[1] for row in rows if row])
    assert len(package.imports) > 500, "hardly any import was found"
    return package


def test_table_names_wings_and_their_folders(package: Package) -> None:
    """Every wing, and every folder in one, has a row; the table has no others."""
    folders = [package.folder(name) for name in package.packages if name.count(".") in (1, 2)]
    assert sorted(folders) == sorted(package.rows)
    assert [row.partition(".")[0] for row in package.rows] == sorted(
        (row.partition(".")[0] for row in package.rows), key=package.wings.index
    )


def test_every_wing_has_a_short_readme(package: Package, root: Path) -> None:
    for wing in package.wings:
        lines = (root / PACKAGE / wing / "README.md").read_text("utf-8").splitlines()
        assert 10 < len(lines) <= 40, wing
        named = set(re.findall(r"`(\w+)/`", "\n".join(lines)))
        inner = {row.partition(".")[2] for row in package.rows if row.startswith(f"{wing}.")}
        assert inner <= named, f"{wing}/README.md does not name {inner - named}"


def test_imports_go_down_and_through_faces(package: Package) -> None:
    assert package.faults(package.imports) == []


def test_rooms_have_few_names(package: Package) -> None:
    """The compiler has no face of its own, so that an import says in which room a thing lives."""
    rooms = {name: face for name, face in package.faces.items() if _wing(name) == ROOMY}
    assert f"{PACKAGE}.{ROOMY}" not in rooms and len(rooms) > 8
    assert {name: len(face) for name, face in rooms.items() if len(face) > MOST_NAMES} == {}


def test_exceptions_are_needed(package: Package) -> None:
    judged = {(i.module, i.source, i.name) for i in package.imports if package.fault(i)}
    assert judged == EXCEPTIONS


def test_imported_modules_exist(package: Package) -> None:
    assert [item for item in package.imports if item.source not in package.names] == []
    targets = {target for face in package.faces.values() for target in face.values()}
    assert targets <= package.names


def test_no_circles(package: Package) -> None:
    """Neither between folders that lie beside each other nor between files."""
    assert _circles(package.folder_graph()) == []
    assert _circles(package.file_graph()) == []


def _circles(graph: dict[str, set[str]]) -> list[str]:
    """Remove what imports nothing that is left; the rest is, or leads to, a circle."""
    left = dict(graph)
    while True:
        free = [name for name, targets in left.items() if not targets & left.keys()]
        if not free:
            return sorted(left)
        for name in free:
            del left[name]


@pytest.mark.parametrize(
    ("source", "name", "is_package", "expected"),
    [
        ("from ..plan import P", "tvm_distir.core.ir.mesh", False, ("tvm_distir.core.plan", "P")),
        ("from .. import plan", "tvm_distir.core.ir", True, ("tvm_distir.core", "plan")),
        (
            "def f():\n from tvm_distir.core import R",
            "tvm_distir.x",
            False,
            (PACKAGE + ".core", "R"),
        ),
        (
            "if TYPE_CHECKING:\n import tvm_distir.core",
            "tvm_distir.x",
            False,
            (PACKAGE + ".core", None),
        ),
        ("import_module('tvm_distir.core')", "tvm_distir.x", False, (PACKAGE + ".core", None)),
    ],
)
def test_every_form_of_import_is_seen(
    source: str, name: str, is_package: bool, expected: tuple[str, str | None]
) -> None:
    module = SimpleNamespace(name=name, is_package=is_package, tree=ast.parse(source), path="x")
    assert [(item.source, item.name) for item in _imports(module)] == [expected]


@pytest.mark.parametrize(
    ("module", "source", "name", "fault"),
    [
        ("support.errors.tree", "core", "Plan", "core is not below support"),
        ("core.passes.lower.passes", "transforms", "distribute", "transforms is not below core"),
        ("transforms.distribute", "core.plan.plan", "Plan", "not a name of the face"),
        ("transforms.distribute", "core.plan", "Planet", "not a name of the face"),
        ("core.ops.lookup", "support.errors", "UsageError", "not a name of the face"),
        ("transforms.distribute", "core.passes.lower", "passes", "a module of an inner folder"),
        ("transforms.distribute", "core.plan.plan", None, "a module of an inner folder"),
        ("core.ops.lookup", "core.ops", "Work", "not the file that defines it"),
        ("core.ops.lookup", "core.ops", "Rule", "not the file that defines it"),
        ("transforms.distribute", "core", "Plan", "not a name of the face"),
        ("transforms.distribute", "core.plan", "Plan", None),
        ("transforms.distribute", "core.ir", "ops", None),
        ("core.ops.lookup", "core.ops.factor", "Rule", None),
    ],
)
def test_wrong_imports_are_found(
    package: Package, module: str, source: str, name: str | None, fault: str | None
) -> None:
    planted = Import("x:1", f"{PACKAGE}.{module}", f"{PACKAGE}.{source}", name)
    faults = package.faults([planted])
    assert bool(faults) == bool(fault)
    assert all(str(fault) in text for text in faults)


def test_planted_circles_are_found(package: Package) -> None:
    assert _circles({"a": {"b", "c"}, "b": {"c"}}) == []
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c"]
    planted = SimpleNamespace(
        name=f"{PACKAGE}.core.ir.mesh",
        is_package=False,
        path="x",
        tree=ast.parse("from tvm_distir.core.passes.lower.passes import lower"),
    )
    grown = Package([], package.faces, package.rows)
    grown.names, grown.packages = package.names, package.packages
    grown.imports = [*package.imports, *_imports(planted)]
    assert {"core.ir", "core.passes"} <= set(_circles(grown.folder_graph()))
    assert f"{PACKAGE}.core.ir.mesh" in _circles(grown.file_graph())
