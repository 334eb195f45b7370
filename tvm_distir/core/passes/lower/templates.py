# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower equal bindings once: the local form of the first serves them all.

Two bindings share a template when they are equal up to the variables that they read
(:attr:`~.Reading.like`), and the *states* of these variables are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ops.class_memo import learned
from tvm_distir.core.rewriting.substitute import VARIABLES

from .template import ConstantSlot, Fields, Key, Template, VariableState

_numbers = itertools.count()


class Templates:
    """Templates for a mesh.

    Keys are the class of the binding and the numbers of the states of what it reads; a constant
    has the number -1.

    Parameters
    ----------
    shared : dict
        The templates of all modules, on meshes of the same devices.
    """

    def __init__(self, shared: dict[Key, Template]) -> None:
        self.shared = shared
        self._states: dict[VariableState, int] = learned("states")
        self._own: dict[Key, Template] = {}

    def find(self, key: Key) -> Template | None:
        """Return the template of a key, or None."""
        return self.shared.get(key) or self._own.get(key)

    def number(self, state: VariableState) -> int:
        """Return the number of a state."""
        number = self._states.get(state)
        return self._states.setdefault(state, next(_numbers)) if number is None else number

    def keep(
        self, key: Key, old: Any, new: Any, operands: Sequence[Any], state: VariableState
    ) -> None:
        """Store the lowered form of a binding.

        Nothing is kept where that does not follow from the operands alone.

        Parameters
        ----------
        key : tuple of int
        old, new : expression
            The value at level 4, and its local form.
        operands : sequence of Var or None
            Local forms of the variables that it reads, in order; None for a constant.
        state : VariableState
            The state of the variable that it is bound to.
        """
        if type(new) not in (ir.Call, relax.TupleGetItem, relax.Tuple):
            return
        parts = _Parts(operands).of(old, new)
        if parts is not None:
            template = Template.of(new, old, parts, state, self.number(state))
            (self._own if template.is_own else self.shared)[key] = template


class _Parts:
    """A matcher of the operands of a call with the arguments of its local form."""

    def __init__(self, operands: Sequence[Any]) -> None:
        self.operands = operands
        self.constants = sum(x is None for x in operands)

    def of(self, old: Any, new: Any) -> tuple[Any, ...] | None:
        """Return the parts of the local form; None if a part is neither operand nor literal."""
        mine, theirs = _arguments(new), _arguments(old)
        aligned = len(mine) == len(theirs) and self._positions(theirs)
        if aligned:
            at = [0]
            places = [self._aligned(a, b, at) for a, b in zip(mine, theirs)]
            if not _has_none(places):
                return tuple(places)
        if self.constants:
            return None
        places = [self._searched(a) for a in mine]
        return None if _has_none(places) else tuple(places)

    def _positions(self, args: Sequence[Any]) -> bool:
        return sum(_count(a) for a in args) == len(self.operands)

    def _aligned(self, new: Any, old: Any, at: list[int]) -> Any:
        """Return the part of an argument at its original position; None if another is there."""
        kind = type(old)
        if kind in VARIABLES or kind is ir.GenericConst:
            operand = self.operands[at[0]]
            at[0] += 1
            if kind is ir.GenericConst:
                number = sum(x is None for x in self.operands[: at[0] - 1])
                if type(new) is not ir.GenericConst:
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

    def _searched(self, new: Any) -> Any:
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


def _arguments(value: Any) -> list[Any]:
    if type(value) is ir.Call:
        arguments: list[Any] = value.args[:]
    elif type(value) is relax.TupleGetItem:
        arguments = [value.tuple_value]
    else:
        arguments = value.fields[:] if type(value) is relax.Tuple else [value]
    return arguments


def _count(arg: Any) -> int:
    """Return how many variables and constants an argument mentions."""
    if type(arg) is relax.Tuple:
        return sum(_count(field) for field in arg.fields[:])
    return int(type(arg) in VARIABLES or type(arg) is ir.GenericConst)
