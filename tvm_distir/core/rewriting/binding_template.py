# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the template from which the new forms of equal bindings are written."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, relax
from tvm.ir import Op

from tvm_distir.core.ir.operators.ops import PREFIX, dist_op_name
from tvm_distir.core.ir.types import flat_types, tensor_type
from tvm_distir.support import GenericConst

from .calls import typed
from .nodes import argument, make_call
from .substitute import VARIABLES

SAME = "those of the value"
OWN = (ir.GlobalVar, GenericConst)

Key = tuple[int | None, ...]
"""Class of a binding, then the number of the state of each variable that it reads."""


class ConstantSlot(NamedTuple):
    """A placeholder of a constant, by its number among the constants.

    ``ty`` is the type of its new form; None where that is the constant itself.
    """

    number: int
    ty: ir.Type


class Fields(NamedTuple):
    """A placeholder of a tuple."""

    parts: tuple[Any, ...]
    ty: ir.Type


@dataclass(frozen=True)
class Template:
    """The new form of a binding.

    Attributes
    ----------
    state : hashable
        The state of the variable that it is bound to.
    number : int
        The number of that state.
    parts : tuple or None
        The replacements of the arguments: an int for a variable by its position among those that
        the binding reads, :class:`ConstantSlot`, :class:`Fields`, else the very argument. None for
        a binding that stays: then the other attributes have no meaning.
    op, attrs, ty_args
        The op, attributes and type arguments of a call; None for other values. A collective with
        the attributes of the original value has :data:`SAME` for them: they mention a mesh,
        and the mesh of a module cannot be used in another module.
    index : int
        The index of a field that is read; -1 for other values.
    ty : type
        The type of the value.
    """

    state: Any
    number: int
    parts: tuple[Any, ...] | None = None
    op: ir.Expr | None = None
    attrs: Any = None
    ty_args: Sequence[ir.Type] | None = None
    index: int = -1
    ty: ir.Type = None

    @staticmethod
    def of(new: ir.Expr, old: ir.Expr, parts: tuple[Any, ...], state: Any, number: int) -> Template:
        """Return the template of a value, a Call, TupleGetItem or Tuple, which it does not keep."""
        if type(new) is ir.Call:
            same = dist_op_name(new) is not None and type(old) is ir.Call
            same = same and tvm_ffi.structural_equal(new.attrs, old.attrs)
            attrs = SAME if same else new.attrs
            return Template(state, number, parts, new.op, attrs, new.ty_args, ty=new.ty)
        index = int(new.index) if type(new) is relax.TupleGetItem else -1
        return Template(state, number, parts, index=index, ty=new.ty)

    @functools.cached_property
    def constant_types(self) -> list[ir.Type]:
        """Return the types of the new forms of its constants, in order."""
        return [part.ty for part in _flat(self.parts or ()) if type(part) is ConstantSlot]

    def constants(self, old: ir.Expr) -> list[ir.Expr]:
        """Return the constants among the operands of an original value, in order."""
        if self._constants is None or type(old) is not ir.Call:
            return list(_constants_of(old))
        return [argument(old, i) for i in self._constants]

    @functools.cached_property
    def _constants(self) -> list[int] | None:
        """Return which arguments of a call are constants; None where each must be inspected."""
        parts = self.parts or ()
        if self.op is None or any(type(part) is Fields for part in parts):
            return None
        return [i for i, part in enumerate(parts) if type(part) is ConstantSlot]

    @property
    def is_own(self) -> bool:
        """Return whether it refers to its module: a function, a mesh or constant data."""
        op = self.op
        if any(type(x) in OWN for x in _flat(self.parts or ())):
            return True
        if op is not None:
            if type(op) is not Op:
                return True
            if self.attrs is not SAME and str(op.name).startswith(PREFIX):
                return True
        tensors = filter(None, map(tensor_type, flat_types(self.ty)))
        return any(ty.vdevice is not None for ty in tensors)

    def value(self, old: ir.Expr, operands: Sequence[ir.Expr], constants: Sequence[Any]) -> ir.Expr:
        """Instantiate the template.

        Parameters
        ----------
        old : expression
            The original value.
        operands : sequence of Var
            New forms of the variables that the binding reads, in order.
        constants : sequence of expressions
            New forms of the constants among its operands, in order.
        """
        args = [
            operands[part] if type(part) is int else _filled(part, operands, constants)
            for part in self.parts or ()
        ]
        if self.op is not None:
            attrs = old.attrs if self.attrs is SAME else self.attrs
            return make_call(self.op, args, attrs, self.ty_args, self.ty)
        if self.index >= 0:
            return typed(relax.TupleGetItem(args[0], self.index), self.ty)
        return typed(relax.Tuple(args), self.ty)


def _flat(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        if type(part) is Fields:
            yield from _flat(part.parts)
        else:
            yield part


def _filled(part: Any, operands: Sequence[ir.Expr], constants: Sequence[ir.Expr]) -> ir.Expr:
    if type(part) is int:
        return operands[part]
    if type(part) is ConstantSlot:
        return constants[part.number]
    if type(part) is Fields:
        fields = [_filled(field, operands, constants) for field in part.parts]
        return typed(relax.Tuple(fields), part.ty)
    return part


def _constants_of(value: Any) -> Iterator[Any]:
    """Return the constants among the operands of a value, in order."""
    if type(value) is GenericConst:
        yield value
    elif type(value) in (ir.Call, relax.Tuple):
        for part in (value.args if type(value) is ir.Call else value.fields)[:]:
            yield from _constants_of(part)


class PartMatcher:
    """A matcher of the operands of a call with the arguments of its new form.

    Parameters
    ----------
    operands : sequence of Var or None
        New forms of the variables that a binding reads, in order; None for a constant.
    """

    def __init__(self, operands: Sequence[ir.Expr | None]) -> None:
        self.operands = operands
        self.constants = sum(x is None for x in operands)

    def of(self, old: ir.Expr, new: ir.Expr) -> tuple[Any, ...] | None:
        """Return the parts of the new form; None if a part is neither operand nor literal."""
        mine, theirs = _arguments(new), _arguments(old)
        aligned = len(mine) == len(theirs) and sum(map(_count, theirs)) == len(self.operands)
        if aligned:
            at = [0]
            positions = [self._aligned(a, b, at) for a, b in zip(mine, theirs)]
            if not _has_none(positions):
                return tuple(positions)
        if self.constants:
            return None
        positions = [self._searched(a) for a in mine]
        return None if _has_none(positions) else tuple(positions)

    def _aligned(self, new: ir.Expr, old: ir.Expr, at: list[int]) -> Any:
        """Return the part of an argument at its original position; None if another is there."""
        kind = type(old)
        if kind in VARIABLES or kind is GenericConst:
            operand = self.operands[at[0]]
            at[0] += 1
            if kind is GenericConst:
                number = sum(x is None for x in self.operands[: at[0] - 1])
                if type(new) is not GenericConst:
                    return None
                return ConstantSlot(number, None if new.same_as(old) else new.ty)
            same = type(new) in VARIABLES and operand is not None and new.same_as(operand)
            return at[0] - 1 if same else None
        if kind is relax.Tuple:
            fields = old.fields[:]
            if type(new) is not relax.Tuple or len(new.fields) != len(fields):
                return None
            parts = [self._aligned(a, b, at) for a, b in zip(new.fields[:], fields)]
            return None if _has_none(parts) else Fields(tuple(parts), new.ty)
        return None if _count(new) else new

    def _searched(self, new: ir.Expr) -> int | ir.Expr | None:
        """Return the part of an argument at any position; None if it is no single operand."""
        if type(new) in VARIABLES:
            matches = [i for i, x in enumerate(self.operands) if new.same_as(x)]
            return matches[0] if len(matches) == 1 else None
        if type(new) is relax.Tuple:
            parts = [self._searched(field) for field in new.fields[:]]
            return None if _has_none(parts) else Fields(tuple(parts), new.ty)
        return new


def _has_none(parts: Sequence[Any]) -> bool:
    return any(part is None for part in parts)  # TVM's expressions overload ==


def _arguments(value: ir.Expr) -> list[ir.Expr]:
    if type(value) is ir.Call:
        arguments: list[ir.Expr] = value.args[:]
    elif type(value) is relax.TupleGetItem:
        arguments = [value.tuple_value]
    else:
        arguments = value.fields[:] if type(value) is relax.Tuple else [value]
    return arguments


def _count(arg: ir.Expr) -> int:
    """Return how many variables and constants an argument mentions."""
    if type(arg) is relax.Tuple:
        return sum(_count(field) for field in arg.fields[:])
    return int(type(arg) in VARIABLES or type(arg) is GenericConst)
