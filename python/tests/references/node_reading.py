# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read Relax functions in plain Python, as ``passes/ffi/reading.cc`` and ``survey.cc`` do."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from tests.references.node_numbers import NUMBERS
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.rewriting.substitute import VARIABLES
from tvm_distir.support import GenericConst, StringImm

NONE = -1

_OP_CALL, _FUNCTION_CALL, _OTHER_CALL, _TUPLE, _ITEM, _ALIAS, _IF, _FUNCTION, _CAST, _OTHER = range(
    10
)
_VARIABLE, _TUPLE_PART, _CONSTANT, _LITERAL = range(4)
_PLAIN_CALL = -4
_OPEN = (*VARIABLES, ir.Call, relax.If, relax.Function)
_LITERALS = (relax.ShapeExpr, tirx.IntImm, tirx.FloatImm, StringImm)


def packed(values: Sequence[int]) -> bytes:
    """Return integers as bytes of int64."""
    return array("q", values).tobytes()


def bindings_in(function: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the bindings of a normalized function with the values that they bind.

    Raises
    ------
    TypeError
        For what is not a ``relax.Function`` with a sequence of bindings.
    """
    if type(function) is not relax.Function:
        raise TypeError(f"a relax.Function is needed, not a {type(function).__name__}")
    if type(function.body) is not relax.SeqExpr:
        raise TypeError("the body of the function is no sequence of bindings")
    for block in function.body.blocks:
        for binding in block.bindings:
            yield binding, binding.value


class _Variables:
    """The variables of a function, numbered in order, with their types."""

    def __init__(self, params: Sequence[relax.Var]) -> None:
        self.all: list[Any] = []
        self.types: list[int] = []
        self.number: dict[int, int] = {}
        for param in params:
            self.add(param)

    def add(self, variable: relax.Var) -> None:
        self.number[handle(variable)] = len(self.all)
        self.all.append(variable)
        self.types.append(NUMBERS.of(variable.ty))

    @property
    def names(self) -> str:
        """Return the names, each followed by a NUL."""
        return "".join(f"{variable.name}\0" for variable in self.all)


class _Description:
    """A description of a value, apart from the variables that it reads.

    Attributes
    ----------
    key : list of int
        Equal for equal values.
    reads : list of int
        Numbers of variables, :data:`NONE` for constants.
    mentions_function : bool
        Whether a function of the module is mentioned.
    """

    def __init__(self, variables: _Variables, key: list[int]) -> None:
        self.variables, self.key = variables, key
        self.reads: list[int] = []
        self.mentions_function = False

    def add_callee(self, call: ir.Call) -> None:
        self.mentions_function = type(call.op) is not ir.Op
        self.key += [handle(call.op), NUMBERS.of(call.attrs), NUMBERS.of(call.ty_args)]

    def add(self, part: Any, literals: tuple[type, ...] | None) -> bool:
        """Add an operand; return whether it can be described.

        Parameters
        ----------
        part : expression
        literals : tuple of type, optional
            The types of literals that are described; None: all except for :data:`_OPEN`.
        """
        if not isinstance(part, tvm_ffi.Object):
            self.key += [_LITERAL, NUMBERS.of(part)]
            return literals is None
        number = self.variables.number.get(handle(part))
        kind = type(part)
        if number is not None:
            self.key += [_VARIABLE, self.variables.types[number]]
            self.reads.append(number)
            return True
        if kind is relax.Tuple:
            self.key += [_TUPLE_PART, len(part.fields)]
            return all([self.add(field, literals) for field in part.fields])
        if kind is relax.TupleGetItem and literals is None:  # in a result
            self.add(part.tuple_value, literals)
            return False
        if kind is GenericConst:
            self.key += [_CONSTANT, NUMBERS.of(part.ty)]
            self.reads.append(NONE)
            return True
        if kind is ir.GlobalVar:
            self.mentions_function = True
            self.key += [_LITERAL, NONE, handle(part)]
            return True
        is_literal = kind not in _OPEN if literals is None else kind in literals
        if is_literal:
            self.key += [_LITERAL, NUMBERS.of(part)]
        return is_literal


def read_functions(functions: Sequence[Any]) -> list[list[Any]]:
    """Read functions together: the reference of the native function of this name."""
    with NUMBERS.lock:
        NUMBERS.trim()
        by_key: dict[tuple[int, ...], int] = {}  # of calls of functions of this module
        return [_read(function, by_key) for function in functions]


def _read(function: Any, by_key: dict[tuple[int, ...], int]) -> list[Any]:
    rows = list(bindings_in(function))
    variables = _Variables(function.params)
    kinds, like, begin, reads = [], [], [0], []
    for binding, value in rows:
        variables.add(binding.var)
        kind = _CAST if type(binding) is relax.MatchCast else _kind_of(value)
        described = _Description(variables, [kind, variables.types[-1]])
        is_plain = isinstance(value, tvm_ffi.Object) and kind not in (_IF, _FUNCTION)
        if is_plain:
            is_plain = _describe(value, kind, described)
        number = NONE
        if is_plain and kind != _CAST:
            if described.mentions_function:
                key = tuple(described.key)
                number = by_key[key] if key in by_key else by_key.setdefault(key, NUMBERS.fresh())
            else:
                number = NUMBERS.of_key(described.key)
        kinds.append(kind)
        like.append(number)
        reads += described.reads
        begin.append(len(reads))
    result = _Description(variables, [])
    result.add(function.body.body, None)
    lists = (kinds, like, begin, reads, variables.types, result.reads)
    bindings, values = [binding for binding, _ in rows], [value for _, value in rows]
    return [bindings, variables.all, values, variables.names, *map(packed, lists)]


def _describe(value: Any, kind: int, described: _Description) -> bool:
    """Describe a bound value, and return whether that was possible."""
    if kind in (_OP_CALL, _FUNCTION_CALL, _OTHER_CALL):
        described.add_callee(value)
        return all([described.add(part, None) for part in value.args])
    if kind == _ITEM:
        described.key.append(value.index)
        return described.add(value.tuple_value, None)
    return described.add(value, None)


def _kind_of(value: Any) -> int:
    kind = type(value)
    if kind is ir.Call:
        callees = {ir.Op: _OP_CALL, ir.GlobalVar: _FUNCTION_CALL}
        return callees.get(type(value.op), _OTHER_CALL)
    kinds = {
        relax.Tuple: _TUPLE, relax.TupleGetItem: _ITEM, ir.Var: _ALIAS, relax.DataflowVar: _ALIAS,
        relax.If: _IF, relax.Function: _FUNCTION,
    }  # fmt: skip
    return kinds.get(kind, _OTHER)


def spread(sequence: Sequence[Any], take: Any) -> None:
    """Hand the elements of a sequence to a function as its arguments."""
    take(*sequence)


def survey(function: Any, annotation: Any, names: Sequence[str]) -> list[Any]:
    """Index a function: the reference of the native function of this name."""
    with NUMBERS.lock:
        NUMBERS.trim()
        return _Survey(function, annotation, names).arrays()


class _Survey:
    """The index of a function; the attributes are those of :class:`.survey.FunctionIndex`."""

    def __init__(self, function: Any, annotation: Any, names: Sequence[str]) -> None:
        self.annotation = handle(annotation)
        self.first: list[int] = []
        self.sources: list[int] = []
        self.asked: list[int] = []
        self.named: list[int] = []
        self.like: list[int] = []
        self.classes: list[int] = []
        self.begin, self.operands = [0], list[int]()
        self._by_type: dict[tuple[Any, ...], int] = {}
        self._by_annotation: dict[tuple[int, ...], int] = {}
        self._by_call: dict[Any, int] = {}
        requested = set(map(str, names))
        rows = list(bindings_in(function))
        self.variables = _Variables(function.params)
        for number, variable in enumerate(self.variables.all):
            self._add_type(number, variable)
        for binding, value in rows:
            is_call = type(binding) is relax.VarBinding and type(value) is ir.Call
            call = value if is_call else None
            self.sources.append(self._source(call))
            self.named.append(int(str(binding.var.name) in requested))
            self._add_type(len(self.variables.all), binding.var)
            self.variables.add(binding.var)
            self.asked.append(self._first_annotation(call))
            self._add_call(call)

    def arrays(self) -> list[Any]:
        """Return the names and the packed arrays, in the order of the fields."""
        every = self.variables.all
        hidden = [int(type(variable) is relax.DataflowVar) for variable in every]
        lists = (
            [handle(variable) for variable in every], hidden, self.first, self.sources, self.asked,
            self.named, self.like, self.classes, self.begin, self.operands, self.variables.types,
        )  # fmt: skip
        return [self.variables.names, *map(packed, lists)]

    def _add_type(self, number: int, variable: relax.Var) -> None:
        key = _static_tensor(variable.ty)
        self.first.append(NONE if key is None else self._by_type.setdefault(key, number))

    def _source(self, call: ir.Call) -> int:
        """Return the variable that a call annotates."""
        if call is None or handle(call.op) != self.annotation or not len(call.args):
            return NONE
        return self.variables.number.get(handle(call.args[0]), NONE)

    def _first_annotation(self, call: ir.Call) -> int:
        """Return the first annotation that asks the same as this binding, if it is known."""
        source = self.sources[-1]
        if NONE in (source, self.first[-1], self.first[source]):
            return NONE
        placed = handle(call.attrs.device_mesh), handle(call.attrs.placement)
        key = (*placed, self.first[source], self.first[-1], self.named[-1])
        return self._by_annotation.setdefault(key, len(self.asked))

    def _add_call(self, call: ir.Call) -> None:
        """Note the operands of a call, the first call like it, and the number of its class."""
        number, first, same_key = len(self.like), NONE, NONE
        if call is not None and self.sources[-1] == NONE and type(call.op) in (ir.Op, ir.GlobalVar):
            described = _Description(self.variables, [_PLAIN_CALL])
            described.add_callee(call)
            described.key.append(self.variables.types[-1])
            if all(described.add(part, _LITERALS) for part in call.args):
                key = tuple(described.key)
                if not described.mentions_function:
                    same_key = NUMBERS.of_key(key)
                first = self._by_call.setdefault(key if same_key == NONE else same_key, number)
                self.operands += described.reads
        self.like.append(first)
        self.classes.append(same_key)
        self.begin.append(len(self.operands))


def _static_tensor(ty: ir.Type) -> tuple[Any, ...] | None:
    """Return the element type and dims of a tensor type with known dims; None for others."""
    if type(ty) is not relax.TensorType or type(ty.shape) is not relax.ShapeExpr:
        return None
    dims = list(ty.shape.values)
    if ty.dtype is None or ty.vdevice is not None or any(type(d) is not tirx.IntImm for d in dims):
        return None
    return (str(ty.dtype), *(d.value for d in dims))
