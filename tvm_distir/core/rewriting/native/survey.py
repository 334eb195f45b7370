# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Index a Relax function in a single native sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm_distir.support import native_function

from .function_index import numbers_of, unpack


class FunctionIndex(NamedTuple):
    """The index of a function; variables are the parameters, then the bound variables.

    Attributes
    ----------
    names : sequence of str
        Of the variables.
    handles : sequence of int
        Per variable, its :func:`~tvm_distir.core.ir.handles.handle`.
    hidden : sequence of int
        Per variable, 1 where its dataflow block hides it, else 0.
    first : sequence of int
        Per variable, the first whose type is the same tensor type with known dims; -1 where
        the type is another one.
    sources : sequence of int
        Per binding, the variable that it annotates, -1 where it is no annotation of a variable.
    asked : sequence of int
        Per binding, the first annotation that has the very mesh and placement of this one, and
        the same type and :attr:`named`; -1 where it is no annotation of a variable, or
        :attr:`first` does not tell a type.
    named : sequence of int
        Per binding, 1 where its variable has one of the names asked for, else 0.
    like : sequence of int
        Per binding, the first that calls the same op or function on operands of the same types
        for a result of the same type; -1 where it is no such call, or not plain enough to tell.
    classes : sequence of int
        Per binding, a number that it shares with all calls that this process surveys that are
        :attr:`like` it; no number is given twice, and what has not been met for long may get
        another one. -1 where :attr:`like` is, and where a function of the module is mentioned.
    begin : sequence of int
        Operands of binding i, where ``like[i]`` is not -1, are
        ``operands[begin[i]:begin[i + 1]]``.
    operands : sequence of int
        Variables; -1 for a constant.
    types : sequence of int
        Per variable, a number that it shares with all variables of equal type that this process
        surveys; no number is given twice.
    """

    names: Sequence[str]
    handles: Sequence[int]
    hidden: Sequence[int]
    first: Sequence[int]
    sources: Sequence[int]
    asked: Sequence[int]
    named: Sequence[int]
    like: Sequence[int]
    classes: Sequence[int]
    begin: Sequence[int]
    operands: Sequence[int]
    types: Sequence[int]


def survey(function: Any, annotation: Any, names: Sequence[str] = ()) -> FunctionIndex:
    """Survey a normalized ``relax.Function``.

    Parameters
    ----------
    function : relax.Function
    annotation : ir.Op
        The op of annotations.
    names : sequence of str
        What :attr:`FunctionIndex.named` looks for.
    """
    said, *arrays = unpack(native_function("survey")(function, annotation, names))
    return FunctionIndex(said.split("\0")[:-1], *map(numbers_of, arrays))
