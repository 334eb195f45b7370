# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the template from which the local forms of equal bindings are written."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, relax
from tvm.ir import Op

from tvm_distir.core.ir.ops import PREFIX, dist_op_name
from tvm_distir.core.ir.types import flat_types, tensor_type
from tvm_distir.core.ops.terms import Terms
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.nodes import argument, make_call

SAME = "those of the value"
OWN = (ir.GlobalVar, ir.GenericConst)

Key = tuple[int | None, ...]
"""Class of a binding, then the number of the state of each variable that it reads."""


class VariableState(NamedTuple):
    """The state of the leaves of a variable (see :class:`.values.LocalValues`)."""

    terms: tuple[Terms, ...]
    zero: tuple[bool, ...]


class ConstantSlot(NamedTuple):
    """A placeholder of a constant, by its number among the constants.

    ``ty`` is the type of its local form; None where that is the constant itself.
    """

    number: int
    ty: Any


class Fields(NamedTuple):
    """A placeholder of a tuple."""

    parts: tuple[Any, ...]
    ty: Any


@dataclass(frozen=True)
class Template:
    """The local form of a binding.

    Attributes
    ----------
    op, attrs, ty_args
        The op, attributes and type arguments of a call; None for other values. A collective with
        the attributes of the value bound at level 4 has :data:`SAME` for them: they mention a mesh,
        and the mesh of a module cannot be used in another module.
    index : int
        The index of a field that is read; -1 for other values.
    parts : tuple
        The replacements of the arguments: an int for a variable by its position among those that
        the binding reads, :class:`ConstantSlot`, :class:`Fields`, else the very argument.
    ty : type
        The type of the value.
    state : VariableState
        The state of the variable that it is bound to.
    number : int
        The number of that state.
    """

    op: Any
    attrs: Any
    ty_args: Any
    index: int
    parts: tuple[Any, ...]
    ty: Any
    state: VariableState
    number: int

    @staticmethod
    def of(
        new: Any, old: Any, parts: tuple[Any, ...], state: VariableState, number: int
    ) -> Template:
        """Return the template of a value, a Call, TupleGetItem or Tuple, which it does not keep."""
        if type(new) is ir.Call:
            same = dist_op_name(new) is not None and type(old) is ir.Call
            same = same and tvm_ffi.structural_equal(new.attrs, old.attrs)
            call = (new.op, SAME if same else new.attrs, new.ty_args)
            return Template(*call, -1, parts, new.ty, state, number)
        index = int(new.index) if type(new) is relax.TupleGetItem else -1
        return Template(None, None, None, index, parts, new.ty, state, number)

    @functools.cached_property
    def constant_types(self) -> list[Any]:
        """Return the types of the local forms of its constants, in order."""
        return [part.ty for part in _flat(self.parts) if type(part) is ConstantSlot]

    def constants(self, old: Any) -> list[Any]:
        """Return the constants among the operands of a value at level 4, in order."""
        if self._constants is None or type(old) is not ir.Call:
            return list(_constants_of(old))
        return [argument(old, i) for i in self._constants]

    @functools.cached_property
    def _constants(self) -> list[int] | None:
        """Return which arguments of a call are constants; None where each must be inspected."""
        if self.op is None or any(type(part) is Fields for part in self.parts):
            return None
        return [i for i, part in enumerate(self.parts) if type(part) is ConstantSlot]

    @property
    def is_own(self) -> bool:
        """Return whether it refers to its module: a function, a mesh or constant data."""
        op = self.op
        if any(type(x) in OWN for x in _flat(self.parts)):
            return True
        if op is not None:
            if type(op) is not Op:
                return True
            if self.attrs is not SAME and str(op.name).startswith(PREFIX):
                return True
        tensors = filter(None, map(tensor_type, flat_types(self.ty)))
        return any(ty.vdevice is not None for ty in tensors)

    def value(self, old: Any, operands: Sequence[Any], constants: Sequence[Any]) -> Any:
        """Instantiate the template.

        Parameters
        ----------
        old : expression
            The value at level 4.
        operands : sequence of Var
            Local forms of the variables that the binding reads, in order.
        constants : sequence of expressions
            Local forms of the constants among its operands, in order.
        """
        args = [
            operands[part] if type(part) is int else _filled(part, operands, constants)
            for part in self.parts
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


def _filled(part: Any, operands: Sequence[Any], constants: Sequence[Any]) -> Any:
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
    if type(value) is ir.GenericConst:
        yield value
    elif type(value) in (ir.Call, relax.Tuple):
        for part in (value.args if type(value) is ir.Call else value.fields)[:]:
            yield from _constants_of(part)
