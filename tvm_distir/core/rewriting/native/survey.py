# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Index a Relax function in a single native sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.support import native_function

from .function_index import numbers_of

if TYPE_CHECKING:
    from tvm import relax
    from tvm.ir import Expr


class FunctionIndex(NamedTuple):
    """The index of a function; variables are the parameters, then the bound variables.

    Attributes
    ----------
    names : sequence of str
        The names of the variables.
    handles : sequence of int
        The :func:`~tvm_distir.core.ir.handles.handle` of each variable.
    hidden : sequence of int
        A flag per variable, 1 where its dataflow block hides it, else 0.
    first : sequence of int
        The first variable whose type is the same tensor type with known dims, per variable; -1
        where the type is not such a type.
    sources : sequence of int
        The variable that each binding annotates, -1 where it is no annotation of a variable.
    asked : sequence of int
        The first annotation that has the very mesh and placement of this annotation, and the same
        type and :attr:`named`, per binding; -1 where it is no annotation of a variable, or
        :attr:`first` does not tell a type.
    named : sequence of int
        A flag per binding, 1 where the name of its variable is requested, else 0.
    like : sequence of int
        The first binding that calls the same op or function on operands of the same types for a
        result of the same type, per binding; -1 where it is no such call, or not plain enough to
        tell.
    classes : sequence of int
        The class of each binding: a number that it shares with all calls that this process surveys
        that are :attr:`like` it; no number is given twice, and a call that has not been met for
        long may get another number. -1 where :attr:`like` is, and where a function of the module is
        mentioned.
    begin : sequence of int
        Operands of binding i, where ``like[i]`` is not -1, are
        ``operands[begin[i]:begin[i + 1]]``.
    operands : sequence of int
        Variables; -1 for a constant.
    types : sequence of int
        The type of each variable: a number that it shares with all variables of equal type that
        this process surveys; no number is given twice.
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


def survey(function: relax.Function, annotation: Expr, names: Sequence[str] = ()) -> FunctionIndex:
    """Survey a normalized ``relax.Function``.

    Parameters
    ----------
    function : relax.Function
    annotation : ir.Op
        The op of annotations.
    names : sequence of str
        The names that :attr:`FunctionIndex.named` looks for.
    """
    names_text, *arrays = unpack(native_function("survey")(function, annotation, names))
    return FunctionIndex(names_text.split("\0")[:-1], *map(numbers_of, arrays))
