# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Allow of a TVMScript module only what names of TVM, literals and arithmetic are made of.

TVM's parser evaluates the expressions of a module as Python. What is allowed here cannot reach a
module of Python, a file, or an attribute of an object that TVM's parser does not define.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tvm_distir.support import shipped_data

Refuse = Callable[[ast.AST, str], NoReturn]
"""What raises the error for a node, with the problem."""

BUILTINS: dict[str, object] = {
    f.__name__: f
    for f in (abs, bool, float, int, len, list, max, min, range, round, slice, str, sum, tuple)
}
"""The functions of Python that a module may call, as ``__builtins__`` of its expressions."""

_STATEMENTS = (
    *(ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Pass, ast.Expr),
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While, ast.If, ast.With, ast.withitem),
    *(ast.Assert, ast.Break, ast.Continue),
)
_EXPRESSIONS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.Constant, ast.Starred, ast.Lambda),
    *(ast.Tuple, ast.List, ast.Dict, ast.Subscript, ast.Slice, ast.IfExp, ast.Compare),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
_ALLOWED = (*_STATEMENTS, *_EXPRESSIONS)

_NAMES = shipped_data(__file__, "tvmscript_names.json")
_RUNS = frozenset(_NAMES["runs"])
"""Words of TVM's parser that run Python or a compiler while a module is read."""

_NAMESPACES = frozenset(_NAMES["namespaces"])
"""The modules of Python whose names a module may use."""

_OWNERS: tuple[str, ...] = tuple(_NAMES["owners"])
"""The beginnings of the modules that define what a module may call."""

_SCRIPT = ("script", "ir", "relax", "tir", "tirx", "parser", "DataType")

_MEMBERS = frozenset(_NAMES["members"])
"""Attributes of values: of buffers, variables and iterators."""


def check_syntax(module: ast.ClassDef, names: Mapping[str, object], refuse: Refuse) -> None:
    """Check that a module class holds only names of TVM, literals and arithmetic.

    Parameters
    ----------
    module : ClassDef
    names : mapping of str to object
        What imports and assignments beside the module define.
    refuse : callable
        Raises the error for a node.
    """
    for node in ast.walk(module):
        if not isinstance(node, _ALLOWED):
            refuse(node, f"{type(node).__name__} is not allowed in a module")
        if isinstance(node, ast.Attribute):
            _check_attribute(node, names, module.name, refuse)
        word = node.id if isinstance(node, ast.Name) else getattr(node, "arg", None)
        if isinstance(word, str) and word.startswith("__"):
            refuse(node, f'the name "{word}" is not allowed')


def _check_attribute(
    node: ast.Attribute, names: Mapping[str, object], module: str, refuse: Refuse
) -> None:
    if node.attr.startswith("_"):
        refuse(node, f'the attribute "{node.attr}" is not allowed')
    root, words = _chain(node)
    if root not in names or not isinstance(names[root], types.ModuleType):
        if root in ("cls", module) and len(words) == 1:
            return  # a function of the module
        if node.attr not in _MEMBERS:
            refuse(node, f'the attribute "{node.attr}" of a value is not allowed')
        return
    target: Any = names[root]
    for word in words:
        if target is names.get("tvm") and word not in _SCRIPT:
            refuse(node, f'"tvm.{word}" is not allowed')
        target = getattr(target, word, None)
        owner = target.__name__ if isinstance(target, types.ModuleType) else ""
        if word in _RUNS or (owner and owner not in _NAMESPACES):
            refuse(node, f'"{root}.{".".join(words)}" is not allowed')
    if callable(target):
        owner = str(getattr(target, "__module__", None) or type(target).__module__)
        if not f"{owner}.".startswith(_OWNERS):
            refuse(node, f'"{root}.{".".join(words)}" is not allowed')


def _chain(node: ast.expr) -> tuple[str, list[str]]:
    """Return the name at the root of attributes, "" for another expression, and the attributes."""
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.insert(0, node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else ""), words
