# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write and prune Relax functions in plain Python, as the remaining files of ``passes/ffi`` do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx

from tests.references.node_reading import packed
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.rewriting.nodes import make_binding, make_call, make_var
from tvm_distir.core.rewriting.substitute import VARIABLES
from tvm_distir.support import GenericConst, StringImm

_LITERALS = (relax.ShapeExpr, tirx.IntImm, tirx.FloatImm, StringImm)


class _Writer:
    """Writes the bindings of a function block by block; see :class:`.call_rewriting.CallWriter`."""

    def __init__(self, constant: Callable[[Any, int], Any]) -> None:
        self._constant = constant
        self._known: dict[int, tuple[Any, Any]] = {}  # by handle; the old variable is kept alive

    def know(self, handles: Sequence[int], expressions: Sequence[Any]) -> None:
        """See :meth:`.call_rewriting.CallWriter.know`."""
        for key, expression in zip(handles, expressions, strict=True):
            self._known[key] = None, expression

    def open(
        self,
        bindings: Sequence[relax.Binding],
        types: Sequence[ir.Type],
        which: Sequence[int],
        dataflow: bool,
        inside: Sequence[int],
    ) -> None:
        """See :meth:`.call_rewriting.CallWriter.open`."""
        self._rows = list(zip(bindings, which, strict=True))
        self._types, self._dataflow, self._inside = types, dataflow, set(inside)

    def write(self, first: int) -> list[Any]:
        """Write bindings up to the first that is left to others: variable, binding, and so on."""
        if first < 0:
            raise IndexError(f"no binding {first}")
        result: list[Any] = []
        for binding, number in self._rows[first:]:
            pair = self._written(binding, number) if number >= 0 else None
            if pair is None:
                break
            result += pair
        return result

    def _written(self, binding: relax.Binding, number: int) -> tuple[Any, Any] | None:
        call = binding.value
        if type(binding) is not relax.VarBinding or type(call) is not ir.Call:
            return None
        if type(call.op) is not ir.Op:
            return None
        args = []
        for arg in call.args:
            known = self._known.get(handle(arg))
            if known is not None:
                args.append(known[1])
            elif type(arg) in _LITERALS:
                args.append(arg)
            elif type(arg) is GenericConst:
                args.append(self._constant(arg, number))
            else:
                return None
        old, ty = binding.var, self._types[number]
        hides = type(old) is relax.DataflowVar or handle(old) in self._inside
        variable = make_var(old.name, ty, self._dataflow and hides)
        self._known[handle(old)] = old, variable
        written = make_call(call.op, args, call.attrs, call.ty_args, ty)
        return variable, make_binding(variable, written)


def rewriter(constant: Callable[[Any, int], Any]) -> tuple[Any, Any, Any]:
    """Return the functions of a writer: the reference of the native function of this name."""
    writer = _Writer(constant)
    return writer.know, writer.open, writer.write


def make_variables(names: str, types: Sequence[ir.Type], which: Sequence[int]) -> list[Any]:
    """Make variables: the reference of the native function of this name."""
    return [make_var(name, types[k]) for name, k in zip(_split(names), which, strict=True)]


def make_ports(
    names: str, index: Sequence[int], described: Sequence[Mapping[str, Any]], which: Sequence[int]
) -> list[Any]:
    """Make entries of ``dist.io``: the reference of the native function of this name."""
    rows = zip(_split(names), index, which, strict=True)
    return [{"index": at, "name": name, **described[k]} for name, at, k in rows]


def _split(names: str) -> list[str]:
    """Return names of a text in which each is followed by a NUL."""
    return names.split("\0")[:-1]


def union_find(count: int, groups: Sequence[int]) -> bytes:
    """Return the smallest member of the class of each element, as bytes of int64.

    The reference of the native function of this name; ``groups`` has the number of members of each
    group, followed by the members.
    """
    parent = list(range(count))

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = x = parent[parent[x]]
        return x

    at = 0
    while at < len(groups):
        size = groups[at]
        members = groups[at + 1 : at + 1 + size]
        if size < 1 or len(members) < size:
            raise ValueError(f"a group of {size} members")
        for member in members:
            if not 0 <= member < count:
                raise IndexError(f"{member} is not in [0, {count})")
            low, high = sorted((root(members[0]), root(member)))
            parent[high] = low
        at += 1 + size
    return packed([root(x) for x in range(count)])


def prune(
    blocks: Sequence[Sequence[Any]],
    dataflow: Sequence[int],
    result: Any,
    is_pure: Callable[[Any], bool],
    variables: Callable[[Any], Sequence[Any]],
) -> tuple[list[Any], bool]:
    """Drop pure bindings that nothing reads: the reference of the native function of this name."""
    read: set[int] = set()

    def add_reads(value: Any) -> None:
        kind = type(value)
        if kind in VARIABLES:
            read.add(handle(value))
        elif kind is ir.Call or kind is relax.Tuple:
            for part in value.args if kind is ir.Call else value.fields:
                add_reads(part)
        elif kind is relax.TupleGetItem:
            add_reads(value.tuple_value)
        elif kind is relax.If:
            read.update(map(handle, variables(value)))

    add_reads(result)
    left: list[Any] = []
    pure = True
    for bindings, hides in reversed(list(zip(blocks, dataflow, strict=True))):
        needed: list[Any] = []
        for binding in reversed(list(bindings)):
            clean = bool(is_pure(binding.value))
            if clean and handle(binding.var) not in read:
                continue
            pure = pure and clean
            add_reads(binding.value)
            needed.append(binding)
        if needed:
            make = relax.DataflowBlock if hides else relax.BindingBlock
            left.append(make(needed[::-1]))
    return left[::-1], pure
