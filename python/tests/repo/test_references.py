# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Test that the references of docstrings, as in roles of Sphinx, name what there is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.repo.conftest import PACKAGE

if TYPE_CHECKING:
    from tests.repo.conftest import Module

ROLE = re.compile(r":(class|func|meth|attr|data|mod|exc|obj):`(?:[^`<]*<)?~?([^`>]+?)>?`")
OTHERS = {"concurrent", "jax", "numpy", "onnx", "torch", "tvm"}
"""Libraries whose names are not checked."""


def _targets(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    """Yield the names that an assignment binds, of attributes those of ``self``."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the statements of a module, and those below its conditions."""
    yield tree.body
    for statement in tree.body:
        if isinstance(statement, ast.If):
            yield statement.body


class Names:
    """The names of the package: those that modules and classes define, and those they import."""

    def __init__(self) -> None:
        self.defined: set[str] = set()
        self.imported: dict[str, str] = {}
        self.bases: dict[str, list[str]] = {}

    def add(self, module: str, is_package: bool, tree: ast.Module) -> None:
        """Add the names of a module."""
        self.defined.add(module)
        self._add_body(module, tree.body)
        words = module.split(".")
        if not is_package:
            words.pop()
        for statement in (node for part in _bodies(tree) for node in part):
            if isinstance(statement, ast.ImportFrom):
                source = words[: len(words) + 1 - statement.level] if statement.level else []
                source += [statement.module] if statement.module else []
                for alias in statement.names:
                    name = f"{module}.{alias.asname or alias.name}"
                    self.imported[name] = ".".join([*source, alias.name])

    def _add_body(self, owner: str, body: list[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.defined.add(f"{owner}.{statement.name}")
            elif isinstance(statement, ast.ClassDef):
                self._add_class(f"{owner}.{statement.name}", owner, statement)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                self.defined |= {f"{owner}.{name}" for name in _targets(statement)}
            elif isinstance(statement, (ast.If, ast.Try)):
                self._add_body(owner, [*statement.body, *statement.orelse])

    def _add_class(self, name: str, owner: str, statement: ast.ClassDef) -> None:
        self.defined.add(name)
        self._add_body(name, statement.body)
        self.bases[name] = [f"{owner}.{ast.unparse(base)}" for base in statement.bases]
        for node in ast.walk(statement):
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                self.defined |= {f"{name}.{attribute}" for attribute in _targets(node)}

    def find(self, name: str, depth: int = 12) -> bool:
        """Return whether a full name is one of the package, or of another library."""
        if name in self.defined:
            return True
        if name.partition(".")[0] != PACKAGE:
            return True
        if not depth:
            return False
        words = name.split(".")
        for length in range(len(words), 1, -1):
            head, rest = ".".join(words[:length]), words[length:]
            if head in self.imported:
                return self.find(".".join([self.imported[head], *rest]), depth - 1)
            if rest and any(
                self.find(".".join([base, *rest]), depth - 1)
                for base in self.bases.get(head, [])
                if base.partition("[")[0] in self.defined or base in self.imported
            ):
                return True
        return False

    @cached_property
    def suffixes(self) -> dict[str, list[str]]:
        """The names by all paths with which they end."""
        result: dict[str, list[str]] = {}
        for name in (*self.defined, *self.imported):
            words = name.split(".")
            for start in range(len(words)):
                result.setdefault(".".join(words[start:]), []).append(name)
        return result

    def ends(self, path: str) -> bool:
        """Return whether a name of the package ends with a path, inherited ones included."""
        owner, _, last = path.rpartition(".")
        return path in self.suffixes or any(
            self.find(f"{name}.{last}") for name in self.suffixes.get(owner, ())
        )


@pytest.fixture(scope="module")
def names(modules: list[Module], root: Path) -> Names:
    """The names of the package, and of the faces of its lazy packages."""
    result = Names()
    for module in modules:
        result.add(module.name, module.is_package, module.tree)
        face = (root / module.path).with_suffix(".pyi")
        if face.exists():
            tree = ast.parse(face.read_text(encoding="utf-8"))
            result.add(module.name, module.is_package, tree)
    return result


def _texts(tree: ast.Module, module: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield the lines, the enclosing names, innermost first, and the docstrings of a module."""

    def visit(node: ast.AST, scopes: list[str]) -> Iterator[tuple[int, list[str], str]]:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            scopes = [f"{scopes[0]}.{node.name}", *scopes]
        for child in getattr(node, "body", []):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                if isinstance(child.value.value, str):
                    yield child.lineno, scopes, child.value.value
            else:
                yield from visit(child, scopes)

    yield from visit(tree, [module])


def _resolves(names: Names, scopes: list[str], target: str) -> bool:
    if target.startswith("."):
        return names.ends(target[1:])
    root = target.partition(".")[0]
    if root == PACKAGE:
        return names.find(target)
    return any(names.find(f"{scope}.{target}") for scope in scopes) or (
        "." in target and root in OTHERS
    )


def test_references_name_what_there_is(modules: list[Module], names: Names) -> None:
    wrong, count = [], 0
    for module in modules:
        for line, scopes, text in _texts(module.tree, module.name):
            for match in ROLE.finditer(text):
                count += 1
                target = " ".join(match[2].split())
                if not _resolves(names, scopes, target.removesuffix("()")):
                    place = line + text.count("\n", 0, match.start())
                    wrong.append(f"{module.path}:{place}: {match[0]}")
    assert count > 500, "the references were not found"
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("target", "resolves"),
    [
        ("Plan", False),
        (".Plan.load", True),
        (".Plan.lode", False),
        ("tvm_distir.Plan", True),
        ("tvm_distir.core.plan.Plan", True),
        ("tvm_distir.plan.Plan", False),
        ("tvm_distir.distributed", False),
        ("numpy.ndarray", True),
        (".figures.Figures.mfu", True),
    ],
)
def test_what_resolves(names: Names, target: str, resolves: bool) -> None:
    assert _resolves(names, ["tvm_distir.support.stopwatch"], target) is resolves
