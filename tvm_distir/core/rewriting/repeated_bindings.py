# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrites equal bindings once: what a pass wrote for the first serves as a template.

Two bindings share a template when they are equal up to the variables that they read
(:attr:`~.native.function_index.FunctionView.like`), and the *states* of these variables, what the
pass knows of them, are equal. A pass writes single bindings and describes its states by
:class:`RewrittenValues`; :class:`RepeatedBindings` decides which bindings it has to write.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr, Type
from tvm.relax import Binding, Var

from tvm_distir.core.rewriting.native.function_index import ALIAS, FunctionView
from tvm_distir.support import GenericConst, LoweringError

from .binding_template import Key, PartMatcher, Template
from .calls import location_of
from .nodes import make_binding, make_var
from .substitute import VARIABLES
from .writer import BlockWriter

_REPEATABLE = (ir.Call, relax.TupleGetItem, relax.Tuple)
_numbers = itertools.count()


class RewrittenValues:
    """The states of a function's variables in a pass, with the writer of its new bindings.

    Attributes
    ----------
    name : str
        The name of the function.
    terms : dict
        The terms of leaves of variables that are partial.
    writer : BlockWriter
    removes_aliases : bool
        Whether a variable that is bound to another takes its replacement and state, and has no
        binding where the replacement is visible wherever the variable is.
    """

    name: str
    terms: dict[tuple[Any, int], tuple[tuple[int, str], ...]]
    writer: BlockWriter
    removes_aliases = False

    def fault(self, code: str, problem: str, var: Var, value: Expr, remedy: str) -> LoweringError:
        """Return an error of a binding."""
        return LoweringError(
            code, problem, location=location_of(self.name, var, value), remedy=remedy
        )

    def terms_of(self, expr: Expr, number: int) -> tuple[tuple[int, str], ...]:
        """Return the mesh axes along which a leaf of an expression is partial, with their ops."""
        return self.terms.get((expr, number), ()) if type(expr) in VARIABLES else ()

    def repeats(self) -> bool:
        """Return whether templates hold at this place of the function."""
        return True

    def replacement(self, var: Var) -> tuple[Any, Hashable] | None:
        """Return the variable that takes the place of a variable, and its state.

        None of a variable whose readers need to be written one by one. A pass that leaves a
        variable in place repeats its binding only where that stays too.
        """
        raise NotImplementedError

    def recall(self, var: Var, new: Expr, state: Any) -> None:
        """Note the replacement and the state of a variable, as :meth:`replacement` gave them.

        Variables that stay are not recalled.
        """

    def recast(self, constant: Expr, ty: Type) -> Expr:
        """Return the new form of a constant of this type, None for the constant itself."""
        return constant if ty is None else GenericConst(constant.value, ty)

    def reads_data(self, value: Expr) -> bool:
        """Return whether the new form of a value may depend on the data of its constants."""
        return False


class Templates:
    """The templates of a pass.

    Keys are the class of the binding and the numbers of the states of what it reads; a constant
    has the number -1.

    Parameters
    ----------
    shared : dict
        Templates that hold for all modules.
    states : dict
        The numbers of all states.

    Attributes
    ----------
    local : dict
        Templates that refer to their module.
    """

    def __init__(self, shared: dict[Key, Template], states: dict[Hashable, int]) -> None:
        self.shared, self._states = shared, states
        self.local: dict[Key, Template] = {}

    def number(self, state: Hashable) -> int:
        """Return the number of a state."""
        number = self._states.get(state)
        return self._states.setdefault(state, next(_numbers)) if number is None else number

    def keep(
        self, key: Key, old: Binding, new: Binding, operands: Sequence[Expr | None], state: Hashable
    ) -> None:
        """Store the new form of a binding.

        Nothing is kept where that does not follow from the operands alone.

        Parameters
        ----------
        key : tuple of int
        old, new : Binding
        operands : sequence of Var or None
            New forms of the variables that it reads, in order; None for a constant.
        state : hashable
            The state of the variable that it is bound to.
        """
        if new.same_as(old):
            self.shared[key] = Template(state, self.number(state))
            return
        value, original = new.value, old.value
        if new.var.same_as(old.var) or type(value) not in _REPEATABLE:
            return
        parts = PartMatcher(operands).of(original, value)
        if parts is not None:
            template = Template.of(value, original, parts, state, self.number(state))
            (self.local if template.is_own else self.shared)[key] = template


class RepeatedBindings:
    """A writer of bindings that have templates, which also stores new templates.

    What it knows of a variable ``values`` hears of when a binding that reads it is written without
    a template (:meth:`recall`): most are read by bindings that have templates too.

    Parameters
    ----------
    values : RewrittenValues
    view : FunctionView
        The view of the function.
    templates : Templates

    Attributes
    ----------
    names : list of str
        The names of the variables.
    replacements : list of Var
        What takes the place of each variable whose state is known, the others themselves.
    """

    def __init__(self, values: RewrittenValues, view: FunctionView, templates: Templates) -> None:
        self.values, self.view, self.templates = values, view, templates
        self.names, self._first = view.names, view.params
        self.replacements = list(view.variables)
        self._states: list[Hashable] = [None] * len(view.variables)
        # The last, which -1 finds, is of constants.
        self._numbers: list[int | None] = [*([None] * len(view.variables)), -1]

    def write(self, first: int, end: int, write: Callable[[int], None]) -> None:
        """Write consecutive bindings; ``write`` writes the binding of a number by itself."""
        while (first := self._repeat(first, end)) < end:
            self._write(first, write)
            first += 1

    def _repeat(self, first: int, end: int) -> int:
        """Write bindings from templates; return the number of the first that has none, or end."""
        values, view = self.values, self.view
        if not values.repeats():
            return first
        begin, reads, like, numbers = view.begin, view.reads, view.like, self._numbers
        known, new_bindings, old = self.replacements, values.writer.bindings, view.bindings
        shared, local = self.templates.shared.get, self.templates.local.get
        for number in range(first, end):
            used = reads[begin[number] : begin[number + 1]]
            key = (like[number], *[numbers[n] for n in used])
            template = shared(key) or local(key)
            if template is None:
                if not self._alias(number, used):
                    return number
                continue
            position = self._first + number
            numbers[position] = template.number
            if template.parts is None:
                new_bindings.append(old[number])
                continue
            value = view.values[number]
            constants = self._constants(value, template) if -1 in used else ()
            new = template.value(value, [known[n] for n in used], constants)
            hidden = type(view.variables[position]) is relax.DataflowVar
            known[position] = make_var(self.names[position], template.ty, hidden)
            new_bindings.append(make_binding(known[position], new))
            self._states[position] = template.state
        return end

    def _alias(self, number: int, used: Sequence[int]) -> bool:
        """Let a variable be the replacement of the variable that it is bound to, if it can be."""
        view = self.view
        if not self.values.removes_aliases or view.kinds[number] != ALIAS or used[0] < 0:
            return False
        position, (source,) = self._first + number, used
        new, state = self.replacements[source], self._states[source]
        leaves_block = type(view.variables[position]) is not relax.DataflowVar
        if state is None or (leaves_block and type(new) is relax.DataflowVar):
            return False
        self.know(position, new, state, self._numbers[source])
        return True

    def _write(self, number: int, write: Callable[[int], None]) -> None:
        """Write a binding by itself, and store it as a template if it can serve as such."""
        view, used = self.view, self.view.used(number)
        position, count = self._first + number, len(self.values.writer.bindings)
        self.recall(used)
        write(number)
        self.note(position)
        state, new_bindings = self._states[position], self.values.writer.bindings
        if len(new_bindings) != count + 1 or state is None or view.like[number] < 0:
            return
        numbers = [self._numbers[n] for n in used]
        if None in numbers or not new_bindings[-1].var.same_as(self.replacements[position]):
            return
        if -1 not in used or not self.values.reads_data(view.values[number]):
            operands = [self.replacements[n] if n >= 0 else None for n in used]
            key = (view.like[number], *numbers)
            self.templates.keep(key, view.bindings[number], new_bindings[-1], operands, state)

    def recall(self, used: Sequence[int]) -> None:
        """Pass variables, by their numbers, to ``values``."""
        for n in used:
            state = self._states[n] if n >= 0 else None
            if state is not None:
                self.values.recall(self.view.variables[n], self.replacements[n], state)

    def stay(self, state: Hashable) -> None:
        """Record that all parameters stay, and their state."""
        self._numbers[: self._first] = [self.templates.number(state)] * self._first

    def know(self, position: int, new: Expr, state: Hashable, number: int | None = None) -> None:
        """Record what takes the place of a variable, and its state, by number."""
        self.replacements[position], self._states[position] = new, state
        self._numbers[position] = self.templates.number(state) if number is None else number

    def note(self, position: int) -> None:
        """Record the state of a variable in ``values``."""
        replacement = self.values.replacement(self.view.variables[position])
        if replacement is not None:
            self.know(position, *replacement)

    def _constants(self, value: Expr, template: Template) -> list[Expr]:
        """Return the new forms of the constants that a value holds."""
        types, constants = template.constant_types, template.constants(value)
        return [self.values.recast(c, ty) for c, ty in zip(constants, types, strict=True)]
