# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the texts of passes: an option text, a plan, and the modules before and after."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

HERE = Path(__file__).parent
FILES = sorted(
    path.stem
    for path in HERE.glob("*.py")
    if path.stem != "texts" and not path.stem.startswith(("_", "test_"))
)


@dataclass
class Text:
    """What a file holds; ``options`` is the pass with its options, as the command reads it."""

    doc: str
    options: str
    plan: dict[str, Any] | None
    before: tvm.IRModule
    after: tvm.IRModule


def constants(tree: ast.Module) -> dict[str, Any]:
    """Return the values of the assignments of a file."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }


def read(file: str) -> Text:
    """Read a file; TVMScript with meshes can be parsed but not imported."""
    source = (HERE / f"{file}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    names = constants(tree)
    modules = {
        node.name: tvm.script.from_source("@I.ir_module\n" + ast.get_source_segment(source, node))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    doc = ast.get_docstring(tree) or ""
    return Text(doc, names["PASS"], names.get("PLAN"), modules["Before"], modules["After"])
