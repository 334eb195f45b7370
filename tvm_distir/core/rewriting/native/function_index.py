# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the functions of a module natively, with classes of equal bindings."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.rewriting.calls import bindings_of, check_body
from tvm_distir.core.rewriting.functions import callees_first
from tvm_distir.support import native_function

if TYPE_CHECKING:
    from tvm import ir, relax

#: What a binding binds, the values of :attr:`FunctionView.kinds`.
OP_CALL, FUNCTION_CALL, OTHER_CALL, TUPLE, ITEM, ALIAS, IF, FUNCTION, CAST, OTHER = range(10)


class FunctionView(NamedTuple):
    """A view of a normalized function; variables are the parameters, then the bound variables.

    Attributes
    ----------
    bindings : list of Binding
        The bindings of all blocks, in order.
    variables : list of Var
        Parameters, then what the bindings bind.
    values : list of Expr
        The values of the bindings.
    said : str
        Names of the variables, see :attr:`names`.
    kinds : sequence of int
        The kind of each binding, :data:`OP_CALL` and so on.
    like : sequence of int
        The class of each binding: a number that it shares with those bindings that are equal up to
        the variables of equal types that they read and up to the data of constants: with those of
        all functions that this process reads, where no function of the module is mentioned, else
        with those read together. No number is given twice; a binding that has not been met for long
        may get another number. -1 where no class can be determined (an ``If``, a cast, what is not
        plain).
    begin : sequence of int
        Binding i reads ``reads[begin[i]:begin[i + 1]]``; what an ``If`` or a function inside
        reads is not told.
    reads : sequence of int
        Numbers of variables, in the order of their mention; -1 for a constant.
    types : sequence of int
        The type of each variable: a number that it shares with the variables of equal type.
    result : sequence of int
        The variables of the function's result, as ``reads``.
    """

    bindings: list[relax.Binding]
    variables: list[Any]
    values: list[Any]
    said: str
    kinds: Sequence[int]
    like: Sequence[int]
    begin: Sequence[int]
    reads: Sequence[int]
    types: Sequence[int]
    result: Sequence[int]

    @property
    def params(self) -> int:
        """Return how many parameters the function has: binding i binds variable ``params + i``."""
        return len(self.variables) - len(self.bindings)

    @property
    def names(self) -> list[str]:
        """Return the names of the variables; ask once for many."""
        return self.said.split("\0")[:-1]

    def bound(self, number: int) -> ir.Expr:
        """Return the variable that a binding binds."""
        return self.variables[self.params + number]

    def used(self, number: int) -> Sequence[int]:
        """Return the variables that a binding reads."""
        return self.reads[self.begin[number] : self.begin[number + 1]]

    @property
    def uses(self) -> list[Sequence[int]]:
        """Return what each binding reads; ask once for many."""
        return [self.reads[first:end] for first, end in pairwise(self.begin)]

    @property
    def callees(self) -> list[ir.GlobalVar]:
        """Return the functions of the module that it calls, in order, with repeats."""
        return [self.values[i].op for i, kind in enumerate(self.kinds) if kind == FUNCTION_CALL]

    @property
    def plain(self) -> bool:
        """Return whether it holds no ``If``, function or cast."""
        return not {IF, FUNCTION, CAST}.intersection(self.kinds)


def read_functions(functions: Sequence[relax.Function]) -> list[FunctionView]:
    """Read functions of a module together.

    Parameters
    ----------
    functions : sequence of relax.Function
        The functions, in normal form.
    """
    return [_reading(element) for element in unpack(native_function("read_functions")(functions))]


def _reading(data: Any) -> FunctionView:
    bindings, variables, values, names_text, *others = unpack(data)
    objects = unpack(bindings), unpack(variables), unpack(values)
    return FunctionView(*objects, names_text, *map(numbers_of, others))


def numbers_of(data: bytes) -> tuple[int, ...]:
    """Return the numbers that the library returns as bytes of int64."""
    return struct.unpack(f"{len(data) // 8}q", data)


class Readings:
    """A cache of function views."""

    def __init__(self) -> None:
        self._cache: dict[
            int, tuple[Any, FunctionView]
        ] = {}  # by handle; the function is kept alive

    def of(self, functions: Sequence[relax.Function]) -> list[FunctionView]:
        """Return the readings of functions, see :func:`read_functions`."""
        new = [fn for fn in functions if handle(fn) not in self._cache]
        for fn, reading in zip(new, read_functions(new) if new else (), strict=True):
            self._cache[handle(fn)] = fn, reading
        return [self._cache[handle(fn)][1] for fn in functions]


class Member(NamedTuple):
    """A Relax function of a module with its view."""

    gv: ir.GlobalVar
    fn: relax.Function
    reading: FunctionView

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return str(self.gv.name_hint)


def read_module(
    mod: ir.IRModule, ordered: bool = True, readings: Readings | None = None
) -> list[Member]:
    """Read the Relax functions of a module together.

    Parameters
    ----------
    mod : IRModule
    ordered : bool
        Every callee before its callers; else in the order of their names.
    readings : Readings, optional
        The functions that have been read already.

    Raises
    ------
    LoweringError
        DIST0504 for control flow and casts, and where an order is asked for when functions call
        each other in a circle.
    """
    functions = relax_functions(mod)
    for gv, fn in functions:
        check_body(fn, str(gv.name_hint))
    views = (readings or Readings()).of([fn for _, fn in functions])
    by_name = {str(gv.name_hint): view for (gv, _), view in zip(functions, views, strict=True)}
    for gv, fn in functions:
        name = str(gv.name_hint)
        if not by_name[name].plain:
            list(bindings_of(fn, name))  # says which binding has no distributed form
    if ordered:
        functions = callees_first(mod, {name: view.callees for name, view in by_name.items()})
    return [Member(gv, fn, by_name[str(gv.name_hint)]) for gv, fn in functions]
