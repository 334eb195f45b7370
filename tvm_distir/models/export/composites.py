# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write ops that StableHLO lacks as composites, with attributes and a decomposition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr
from tvm.relax.distributed import DTensorType

from .body_writer import Body, Ssa
from .direct import is_direct
from .port_attributes import PREFIX
from .step import ExportStep, Write
from .text import Unwritable, integers, number_text, string

ARGUMENTS = "arguments"
"""The attribute of a composite that says what a call's arguments are, where some are no tensors."""


class Composites:
    """Decompositions of the composites of a module.

    Attributes
    ----------
    functions : list of str
        The functions, a function for each op, attributes and types.
    """

    def __init__(self) -> None:
        self.functions: list[str] = []
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def write(self, step: ExportStep, name: str, write: Write) -> Any:
        """Write a call directly if it imports as itself, else as a composite.

        Parameters
        ----------
        name : str
            The name of its op, without ``relax.``; of a start, that of its collective.
        write : callable
            Writes what it computes.
        """
        attributes_text = None if is_direct(step, name) else _attributes_text(step)
        if attributes_text is None:
            return write(step)
        name = str(step.call.op.name).removeprefix("relax.")
        body, operands = Body(), list(leaves(step.args))
        inner = [Ssa(f"%arg{i}", value.shape, value.dtype) for i, value in enumerate(operands)]
        result = write(replace(step, args=_renamed(step.args, iter(inner)), body=body))
        results = list(leaves(result))
        title = self._function(f"{PREFIX}.{name}", inner, results, body.lines)
        notes = f"composite_attributes = {{{attributes_text}}}, decomposition = @{title}"
        notes += f', name = "{PREFIX}.{name}", version = 1 : i32'
        kinds = [(value.shape, value.dtype) for value in results]
        if len(kinds) == 1:
            ssa_results = [step.body.op("composite", operands, *kinds[0], notes)]
        else:
            ssa_results = step.body.several("composite", operands, kinds, notes)
        return _renamed(result, iter(ssa_results))

    def _function(
        self, name: str, inner: Sequence[Ssa], results: Sequence[Ssa], lines: Sequence[str]
    ) -> str:
        """Return the name of the function with these lines."""
        arguments = ", ".join(f"{value.name}: {value.type}" for value in inner)
        types = ", ".join(value.type for value in results)
        ended = ", ".join(value.name for value in results)
        text = f"({arguments}) -> ({types}) {{\n"
        text += "".join(f"    {line}\n" for line in lines)
        text += f'    "func.return"({ended}) : ({types}) -> ()\n  }}\n'
        key = name + text
        if key not in self._names:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            self._names[key] = name if count == 1 else f"{name}_{count - 1}"
            self.functions.append(f"  func.func private @{self._names[key]}{text}")
        return self._names[key]


def leaves(value: object) -> Iterator[Ssa]:
    """Return the values among arguments or results, in order."""
    if isinstance(value, Ssa):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)


def _renamed(value: Any, names: Iterator[Ssa]) -> Any:
    """Replace the values in arguments or results."""
    if isinstance(value, Ssa):
        return next(names)
    if isinstance(value, (tuple, list)):
        return type(value)(_renamed(item, names) for item in value)
    return value


def _attributes_text(step: ExportStep) -> str | None:
    """Return a call's attributes and non-tensor arguments as text, or None if impossible."""
    call = step.call
    try:
        texts = [f"{key} = {_text(value)}" for key, value in _attributes(step) if value is not None]
        if not all(_is_tensor(arg) for arg in call.args):
            texts.append(f"{ARGUMENTS} = [{', '.join(map(_argument, call.args))}]")
    except Unwritable:
        return None
    return ", ".join(texts)


def _attributes(step: ExportStep) -> Iterator[tuple[str, Any]]:
    attrs = step.attrs
    if isinstance(attrs, ir.DictAttrs):
        yield from attrs.items()
    elif attrs is not None:
        for field in type(attrs).__tvm_ffi_type_info__.fields:
            yield field.name, getattr(attrs, field.name)


def _text(value: Any) -> str:
    """Return the text of an attribute."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{number_text(value, 'float64')} : f64"
    if isinstance(value, str):
        return string(value)
    if type(value).__name__ == "dtype":
        return string(str(value))
    if hasattr(value, "value") and str(value.ty) in ("int64", "float32"):
        return _text(value.value)
    if hasattr(value, "__iter__"):
        items = list(value)
        plain = items and all(type(item) is int for item in items)
        return integers(items) if plain else f"[{', '.join(map(_text, items))}]"
    raise Unwritable(f"an attribute {value}")


def _is_tensor(arg: Expr) -> bool:
    return isinstance(arg.ty, (relax.TensorType, DTensorType))


def _argument(arg: Expr) -> str:
    """Return ``unit`` for a tensor, a list for a tuple, else the argument."""
    if _is_tensor(arg):
        return "unit"
    if isinstance(arg, relax.Tuple):
        return f"[{', '.join(map(_argument, arg.fields))}]"
    if isinstance(arg, relax.ShapeExpr):
        return f"{{shape = [{', '.join(_text(_known(n)) for n in arg.values)}]}}"
    if isinstance(arg.ty, ir.PrimType):
        return f"{{number = {_text(_known(arg))}, type = {string(str(arg.ty))}}}"
    raise Unwritable(f"an argument {arg}")


def _known(value: Any) -> Any:
    number = getattr(value, "value", value)
    if not isinstance(number, (bool, int, float)):
        raise Unwritable(f"{value} is not known")
    return number
