# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write repeated bindings of a function from templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.ops import dist_op_name
from tvm_distir.core.ops.registry import registration_of
from tvm_distir.core.rewriting.native.function_index import ALIAS, FunctionView
from tvm_distir.core.rewriting.nodes import make_binding, make_var
from tvm_distir.core.rewriting.substitute import VARIABLES

from .template import Key, Template, VariableState
from .values import LocalValues


class LikeBindings:
    """A writer of bindings that have templates, which also stores new templates.

    What it knows of a variable ``values`` hears of when a binding that reads it is visited
    (:meth:`recall`): most are read by bindings that have templates too.

    Parameters
    ----------
    values : LocalValues
    reading : FunctionView
        The view of the function.

    Attributes
    ----------
    names : list of str
        The names of the variables.
    locals : list of Var or None
        The local form of each variable that is in a class of equal variables, with its state.
    """

    def __init__(self, values: LocalValues, reading: FunctionView) -> None:
        self.values, self.reading, self._first = values, reading, reading.params
        self.templates = values.context.templates_on(values.number)
        self.names = reading.names
        self.locals: list[Any] = [None] * len(reading.variables)
        self._states: list[VariableState | None] = [None] * len(reading.variables)
        self._numbers: list[int | None] = [None] * len(reading.variables)

    def write(self, first: int, end: int) -> int:
        """Write the local forms of consecutive bindings from templates.

        Returns the number of the first for which there was none, ``end`` if there was for all.
        """
        values, reading = self.values, self.reading
        if values.tuples:
            # One over several meshes may let a variable out of its block under another name.
            return first
        begin, reads, like, numbers = reading.begin, reading.reads, reading.like, self._numbers
        known, find, written = self.locals, self.templates.find, values.writer.bindings
        for number in range(first, end):
            used = reads[begin[number] : begin[number + 1]]
            template = find((like[number], *[numbers[n] if n >= 0 else -1 for n in used]))
            if template is None:
                if not self._alias(number, used):
                    return number
                continue
            place, value = self._first + number, reading.values[number]
            constants = self._constants(value, template) if -1 in used else ()
            new = template.value(value, [known[n] for n in used], constants)
            hidden = type(reading.variables[place]) is relax.DataflowVar
            local = make_var(self.names[place], template.ty, hidden)
            written.append(make_binding(local, new))
            known[place], self._states[place] = local, template.state
            numbers[place] = template.number
        return end

    def _alias(self, number: int, used: Sequence[int]) -> bool:
        """Write the alias of a variable, if a binding is an alias."""
        values, reading = self.values, self.reading
        if reading.kinds[number] != ALIAS or used[0] < 0 or self.locals[used[0]] is None:
            return False
        place, local = self._first + number, self.locals[used[0]]
        var = reading.variables[place]
        if type(local) is relax.DataflowVar and type(var) is not relax.DataflowVar:
            hidden, local = local, make_var(self.names[place], local.ty)
            values.writer.bindings.append(make_binding(local, hidden))
        self.locals[place], self._states[place] = local, self._states[used[0]]
        self._numbers[place] = self._numbers[used[0]]
        return True

    def keep(self, number: int, binding: Any) -> None:
        """Store the binding that was written for another as a template, if it can serve as such."""
        reading = self.reading
        value, used = reading.values[number], reading.used(number)
        place, key = self._first + number, self._key(number, used)
        state = self._states[place]
        if reading.like[number] < 0 or state is None or None in key:
            return
        if binding.var.same_as(self.locals[place]) and not self._reads_data(value, used):
            operands = [self.locals[n] if n >= 0 else None for n in used]
            self.templates.keep(key, value, binding.value, operands, state)

    def _key(self, number: int, used: Sequence[int]) -> Key:
        states = self._numbers
        return (self.reading.like[number], *[states[n] if n >= 0 else -1 for n in used])

    def recall(self, used: Sequence[int]) -> None:
        """Pass variables, by their numbers, to ``values``."""
        for n in used:
            state = self._states[n] if n >= 0 else None
            if state is not None:
                var = self.reading.variables[n]
                self.values.env[var] = self.locals[n]
                self.values.recall(var, state)

    def know(self, place: int, local: Any, state: VariableState, number: int | None = None) -> None:
        """Record the local form of a variable, and its state by number."""
        self.locals[place], self._states[place] = local, state
        self._numbers[place] = self.templates.number(state) if number is None else number

    def note(self, place: int) -> None:
        """Record the state of a variable in ``values``, if it is in a class of that state."""
        values = self.values
        var = self.reading.variables[place]
        local = values.env.get(var)
        if type(local) in VARIABLES and var not in values.foldable:
            self.know(place, local, values.state(var))

    def _constants(self, value: Any, template: Template) -> list[Any]:
        """Return the local forms of the constants that a value holds."""
        recast, types = self.values.recast, template.constant_types
        constants = template.constants(value)
        return [recast(c, ty) for c, ty in zip(constants, types, strict=True)]

    @staticmethod
    def _reads_data(value: Any, used: Sequence[int]) -> bool:
        """Return whether the local form of a value may depend on the data of its constants."""
        if -1 not in used or type(value) is not ir.Call or dist_op_name(value) is not None:
            return False
        if type(value.op) is not ir.Op:
            return True
        said = registration_of(str(value.op.name))
        return said is not None and callable(said.local)
