# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the imports and literals beside a TVMScript module."""

from __future__ import annotations

import ast
from typing import Any

import tvm

from tvm_distir.support import ModelError

_TVM_PACKAGES = ("tvm", "tvm.script", "tvm.script.parser")


def parser_names() -> dict[str, object]:
    """Return the names that TVM's parser knows."""
    from tvm.script import tirx as tirx_words
    from tvm.script.parser import ir as ir_words
    from tvm.script.parser import relax as relax_words
    from tvm.script.parser import tirx as tirx_parser

    return {
        "tvm": tvm,
        "I": ir_words,
        "ir": ir_words,
        "R": relax_words,
        "relax": relax_words,
        "T": tirx_parser,
        "tir": tirx_parser,
        "tirx": tirx_words,
    }


def imported_names(
    node: ast.Import | ast.ImportFrom, known: dict[str, object], location: str
) -> dict[str, object]:
    """Return the names that an import binds (ModelError DIST0321 for others than TVM's)."""
    remedy = "Import only from tvm.script or tvm.script.parser: ir, relax, tirx."
    result = {}
    if isinstance(node, ast.ImportFrom):
        if node.module == "__future__" and not node.level:
            return {}
        package = "." * node.level + (node.module or "")
        for alias in node.names:
            if package not in _TVM_PACKAGES[1:] or alias.name not in ("ir", "relax", "tir", "tirx"):
                problem = f'import of "{alias.name}" from "{package}" is not allowed'
                raise refused(node, location, problem, remedy)
            word = "T" if alias.name in ("tir", "tirx") else alias.name
            result[alias.asname or alias.name] = known[word]
        return result
    for alias in node.names:
        if alias.name not in _TVM_PACKAGES:
            raise refused(node, location, f'import of "{alias.name}" is not allowed', remedy)
        if alias.asname:
            result[alias.asname] = tvm if alias.name == "tvm" else _submodule(alias.name)
    return result


def _submodule(name: str) -> Any:
    import tvm.script.parser

    return tvm.script if name == "tvm.script" else tvm.script.parser


def assigned_names(node: ast.Assign, location: str) -> dict[str, object]:
    """Return the name of a literal with its value (ModelError DIST0321 for other values)."""
    target = node.targets[0]
    remedy = "Assign only literals (numbers, strings, tuples) next to the module."
    if not isinstance(target, ast.Name):
        raise refused(node, location, "an assignment to an expression that is not a name", remedy)
    if ast.unparse(node.value).startswith("tvm.ir.load_json("):
        return {target.id: _metadata(node, location)}
    try:
        return {target.id: ast.literal_eval(node.value)}
    except ValueError as error:
        raise refused(node, location, f'"{target.id}" is not a literal', remedy) from error


def _metadata(node: ast.Assign, location: str) -> Any:
    """Read ``metadata = tvm.ir.load_json("...")``, TVM's printed constants."""
    call = node.value
    if (
        not isinstance(call, ast.Call)
        or call.keywords
        or len(call.args) != 1
        or not isinstance(call.args[0], ast.Constant)
        or not isinstance(call.args[0].value, str)
    ):
        raise refused(
            node, location, "metadata is not a single string", "Print it with show_meta=True."
        )
    try:
        return tvm.ir.load_json(call.args[0].value)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise refused(
            node,
            location,
            f"the metadata cannot be read: {first_line(error)}",
            "Print the module again with show_meta=True.",
        ) from error


def refused(node: ast.AST, location: str, problem: str, remedy: str) -> ModelError:
    """Return the error DIST0321 about a statement."""
    return ModelError(
        "DIST0321", problem, location=f"{location}:{getattr(node, 'lineno', 1)}", remedy=remedy
    )


def first_line(error: Exception) -> str:
    """Return the first line of a message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
