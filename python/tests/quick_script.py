# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse TVMScript quickly: two functions that TVM's parser calls, with the same results.

``inspect.stack`` is called for each function that is parsed. For each frame, Python looks for the
module of its file. Frames of ``eval`` and of frozen modules have none, so their names are compared
with those of all loaded modules, several times: a third of a second per function under pytest.

The parser compiles each node of an expression, to evaluate it with names for all of its operands.
Attributes and calls, which are most nodes, need no compiler.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from types import FrameType
from typing import Any

import tvm
from tvm.script.parser.core import doc, evaluator
from tvm.script.parser.core.parser import ScriptMacro

_compile_and_eval = evaluator._eval_expr


def _described(frame: FrameType) -> inspect.FrameInfo:
    code, line = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, line, frame.f_globals)
    context, index = ([text], 0) if text else (None, None)
    return inspect.FrameInfo(frame, code.co_filename, line, code.co_name, context, index)


def quick_stack(context: int = 1) -> list[inspect.FrameInfo]:
    """Return what ``inspect.stack`` does with a line of context, whatever ``context`` is.

    A file that changes after it was first read is not read anew.
    """
    frame: FrameType | None = sys._getframe(1)
    result = []
    while frame is not None:
        result.append(_described(frame))
        frame = frame.f_back
    return result


class _OtherNodeError(Exception):
    """The node is not one that is evaluated here."""


def _operand(node: Any, names: dict[str, Any]) -> Any:
    if type(node) is doc.Constant:
        return node.value
    if type(node) is doc.Name and node.id in names:
        return names[node.id]
    raise _OtherNodeError


def _is_macro(function: Any) -> bool:
    cells = getattr(function, "__closure__", None) or ()
    return any(isinstance(x, ScriptMacro) for x in (function, *(c.cell_contents for c in cells)))


def quick_eval(node: Any, names: dict[str, Any] | None) -> Any:
    """Return the value of a node of TVMScript whose operands are names or constants."""
    try:
        if names is None:
            raise _OtherNodeError
        if type(node) is doc.Attribute:
            owner = _operand(node.value, names)
        elif type(node) is doc.Call:
            function = _operand(node.func, names)
            if _is_macro(function):  # looks for the names in the frame of ``eval``
                raise _OtherNodeError
            values = [_operand(value, names) for value in node.args]
            keywords = {word.arg: _operand(word.value, names) for word in node.keywords}
            if None in keywords:  # ``**words``
                raise _OtherNodeError
        else:
            raise _OtherNodeError
    except _OtherNodeError:
        return _compile_and_eval(node, names)
    if type(node) is doc.Attribute:
        return getattr(owner, node.attr)
    return function(*values, **keywords)


def install() -> None:
    """Let TVM 0.27 call the functions of this file; another version may call its own otherwise."""
    if not tvm.__version__.startswith("0.27."):
        return
    inspect.stack = quick_stack
    evaluator._eval_expr = quick_eval
