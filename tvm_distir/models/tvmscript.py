# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import the module classes of a TVMScript ``.py`` file without running the file.

Only the text of a single module class reaches TVM's parser. Imports outside ``tvm.script`` and
other statements are refused, and so is what is no name of TVM, literal or arithmetic inside of the
module (:mod:`~.tvmscript_syntax`), since TVM's parser evaluates expressions as Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import tvm
from tvm import ir
from tvm.script.parser.core.error import ParserError

from tvm_distir.core.analysis import broken_rule
from tvm_distir.core.rewriting import bind_dims
from tvm_distir.models.common.quiet import TURN, drop_half_built
from tvm_distir.models.common.spec import file_bytes
from tvm_distir.support import ModelError, nearest

from .tvmscript_names import assigned_names, first_line, imported_names, parser_names, refused
from .tvmscript_syntax import BUILTINS, check_syntax

_MODULE_DECORATORS = ("ir_module",)
_LINE = re.compile(r"<str>:(\d+)")


def from_tvmscript(
    path_or_text: str | Path, *, dims: Mapping[str, int] | None = None
) -> ir.IRModule:
    """Read the module of a TVMScript file or text.

    Parameters
    ----------
    path_or_text : str or Path
        A ``.py`` file, ``file.py::Name`` to take a class among several module classes, or the text
        itself (recognised by its line breaks). The file may hold imports from ``tvm.script`` (under
        any alias), assignments of literals, TVM's ``metadata`` and classes decorated with
        ``I.ir_module``, at any IR level.
    dims : mapping of str to int, optional
        Sizes of symbolic dims, as `tvm_distir.bind_dims` takes them.

    Raises
    ------
    ModelError
        DIST0313 a size of no dim;
        DIST0301 no file, DIST0320 no Python, DIST0321 a statement not allowed, DIST0322 no
        module or an unclear choice, DIST0323 TVM's parser refuses it; each with the line.

    Examples
    --------
    >>> mod = td.from_tvmscript('''
    ... @I.ir_module
    ... class Module:
    ...     @R.function
    ...     def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
    ...         return R.nn.relu(x)
    ... ''')
    >>> mod["main"].ret_ty
    R.Tensor((4, 8), dtype="float32")
    """
    text, location, class_name = _source(path_or_text)
    try:
        with TURN:
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ModelError(
            "DIST0320",
            str(getattr(error, "msg", error)),
            location=f"{location}:{line}",
            remedy="Give a Python file that contains a TVMScript module.",
        ) from error
    names, classes = _read_statements(tree, location)
    names["__builtins__"] = BUILTINS
    chosen = _choose(classes, class_name, location)

    def refuse(node: ast.AST, problem: str) -> NoReturn:
        remedy = (
            "Use names of TVM's parser, literals and arithmetic. In Python, decorate the class."
        )
        raise refused(node, location, problem, remedy)

    check_syntax(chosen, names, refuse)
    return bind_dims(_parse(text, chosen, names, location), dims or {})


def _source(path_or_text: str | Path) -> tuple[str, str, str | None]:
    """Return the text, its title, and the class named after ``::``."""
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        return path_or_text, "text", None
    name, _, class_name = str(path_or_text).partition("::")
    path = Path(name)
    try:
        text = file_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(
            "DIST0320", "the file is not UTF-8 text", location=name, remedy="Give a .py file."
        ) from error
    return text, name, class_name or None


def _read_statements(
    tree: ast.Module, location: str
) -> tuple[dict[str, object], list[ast.ClassDef]]:
    """Return the names that imports and assignments define, and the module classes."""
    names: dict[str, object] = parser_names()
    classes = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(imported_names(node, names, location))
        elif isinstance(node, ast.ClassDef) and _is_module(node):
            classes.append(node)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            names.update(assigned_names(node, location))
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            raise refused(
                node,
                location,
                f"a {type(node).__name__} statement is next to the module",
                "Keep only imports from tvm.script, literals and @I.ir_module classes.",
            )
    return names, classes


def _is_module(node: ast.ClassDef) -> bool:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if word in _MODULE_DECORATORS:
            return True
    return False


def _choose(classes: list[ast.ClassDef], class_name: str | None, location: str) -> ast.ClassDef:
    by_name = {node.name: node for node in classes}
    if class_name is not None:
        if class_name in by_name:
            return by_name[class_name]
        problem = f'there is no module "{class_name}"'
        raise ModelError(
            "DIST0322", problem, location=location, remedy=nearest(class_name, by_name)
        )
    if len(classes) == 1:
        return classes[0]
    if not classes:
        problem = "there is no class with @I.ir_module"
        remedy = "Decorate the module's class with @I.ir_module."
        raise ModelError("DIST0322", problem, location=location, remedy=remedy)
    problem = f"{len(classes)} modules: {', '.join(by_name)}"
    remedy = f"Choose a module: {location}::{classes[-1].name}"
    raise ModelError("DIST0322", problem, location=location, remedy=remedy)


def _parse(text: str, node: ast.ClassDef, names: dict[str, object], location: str) -> ir.IRModule:
    """Parse a class, with preceding blank lines that preserve line numbers."""
    _check_metadata(node, names, location)
    first = min(decorator.lineno for decorator in node.decorator_list)
    lines = text.splitlines()[first - 1 : node.end_lineno]
    program = "\n" * (first - 1) + "\n".join(lines) + "\n"
    remedy = "Check the op, its arguments and its types."
    try:
        with TURN:
            mod = tvm.script.from_source(program, names)
    except (tvm.error.DiagnosticError, ParserError, tvm.error.InternalError) as error:
        drop_half_built(error)
        match = _LINE.search(str(error))
        line = int(match.group(1)) if match else first
        problem = first_line(error).removeprefix("error: ")
        if problem.startswith("Program is not well-formed"):
            raise _malformed(program, names, f"{location}:{first}") from error
        raise ModelError(
            "DIST0323", problem, location=f"{location}:{line}", remedy=remedy
        ) from error
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        drop_half_built(error)
        raise ModelError(
            "DIST0323", first_line(error), location=f"{location}:{first}", remedy=remedy
        ) from error
    if not isinstance(mod, ir.IRModule):
        problem = f"{node.name} does not evaluate to an IRModule"
        raise ModelError("DIST0322", problem, location=f"{location}:{first}", remedy=remedy)
    return mod


def _malformed(program: str, names: dict[str, object], location: str) -> ModelError:
    """Return the error of a module that is parsed, but breaks a rule of Relax."""
    with TURN:
        mod = tvm.script.from_source(program, names, check_well_formed=False)
    violation = broken_rule(mod)
    reason = "" if violation is None else f": {violation[0]}: {violation[1]}"
    return ModelError(
        "DIST0323",
        f"the module is not well-formed{reason}",
        location=location,
        remedy="A function with impure calls is @R.function(pure=False), with these calls outside "
        "of dataflow blocks; R.call_pure_packed is pure.",
    )


def _check_metadata(node: ast.ClassDef, names: dict[str, object], location: str) -> None:
    """Reject a module that was printed without its constants."""
    if "metadata" in names:
        return
    words = [
        name for name in ast.walk(node) if isinstance(name, ast.Name) and name.id == "metadata"
    ]
    if words and not any(isinstance(word.ctx, ast.Store) for word in words):
        problem = "the module reads its constants from metadata, which the file does not contain"
        remedy = "Print the module with mod.script(show_meta=True)."
        raise ModelError(
            "DIST0323", problem, location=f"{location}:{words[0].lineno}", remedy=remedy
        )
