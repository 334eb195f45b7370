# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measures of a folder of the package that may only fall, and their ceilings in ``limits.json``."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
CEILINGS = HERE / "limits.json"
WORDS = HERE / "private_identifiers.tsv"
MOST_LINES_OF_FUNCTION = 50
"""Lines of a function without its docstring."""
MOST_LINES_OF_FILE = 300
VAGUE_TERMS = ("form", "place", "price", "role", "whole", "wire")
"""Words for which the field has standard terms: placement, position or location, cost, stage kind,
global or total, and sent bytes."""
TOP = "top"
"""The files that lie in no folder of the package."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def private_identifiers() -> dict[str, str]:
    """Return the words that are no identifiers, and their standard terms."""
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return dict(rows)


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield all functions, inner ones and methods included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def length(function: Function) -> int:
    """Return the lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the annotations of parameters, results and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation


def has_any(annotation: ast.expr) -> bool:
    """Return whether an annotation contains ``Any``."""
    return re.search(r"\bAny\b", ast.unparse(annotation)) is not None


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield every use of a name: variables, attributes, parameters, definitions and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield str(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).rpartition(".")[2]


def definitions(tree: ast.AST) -> Iterator[str]:
    """Yield each name that is bound: variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def term_counts(names: Iterable[str]) -> Counter[str]:
    """Count the vague terms, or their plurals, among the words of identifiers."""
    words = (word.lower() for name in names for word in _WORD.findall(name))
    return Counter(word for w in words if (word := w.removesuffix("s")) in VAGUE_TERMS)


def measure_files(files: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Measure files, each given by its name without suffix, and its text."""
    private = private_identifiers()
    counts: Counter[str] = Counter(dict.fromkeys(VAGUE_TERMS, 0))
    total = with_any = 0
    for stem, text in files:
        tree = ast.parse(text)
        counts["long functions"] += sum(
            length(each) > MOST_LINES_OF_FUNCTION for each in functions(tree)
        )
        counts["long files"] += text.count("\n") > MOST_LINES_OF_FILE
        counts += term_counts([stem, *identifiers(tree)])
        counts["private identifiers"] += sum(name in private for name in (stem, *definitions(tree)))
        found = [has_any(annotation) for annotation in annotations(tree)]
        total, with_any = total + len(found), with_any + sum(found)
    names = ("long functions", "long files", "private identifiers", *VAGUE_TERMS)
    share = round(100.0 * with_any / max(total, 1), 1)
    return {"percent Any": share, **{name: counts[name] for name in names}}


def measure(package: Path) -> dict[str, dict[str, float]]:
    """Measure each folder of the package, and the files beside them."""
    wings = sorted(path for path in package.iterdir() if (path / "__init__.py").exists())
    files = {wing.name: sorted(wing.rglob("*.py")) for wing in wings}
    files[TOP] = sorted(package.glob("*.py"))
    return {
        name: measure_files((path.stem, path.read_text(encoding="utf-8")) for path in paths)
        for name, paths in files.items()
    }


def read_ceilings() -> dict[str, dict[str, float]]:
    """Return the ceilings by folder and measure."""
    ceilings: dict[str, dict[str, float]] = json.loads(CEILINGS.read_text(encoding="utf-8"))
    return ceilings


def lowered(
    ceilings: dict[str, dict[str, float]], measured: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Return ceilings that follow what fell, and stay where something rose."""
    return {
        wing: {
            name: min(value, ceilings.get(wing, {}).get(name, value))
            for name, value in values.items()
        }
        for wing, values in measured.items()
    }
