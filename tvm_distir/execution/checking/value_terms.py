# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the values of a program as multiples of terms of the reference."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

from tvm_distir.core.ops import Rule, rule_of
from tvm_distir.core.rewriting import is_tensors, leaves_of, op_name, tensor_args
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import GenericConst

from .alignment import Layout

RESHAPES = ("reshape", "expand_dims", "squeeze")
_SHAPED = ("broadcast_to",)
"""Ops whose argument is the shape of the result."""
_DIGITS = 10
_ELEMENTWISE = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
_ELEMENTWISE |= {"divide": operator.truediv, "power": operator.pow}
_SAME = (*RESHAPES, *_SHAPED, "permute_dims", "astype", "strided_slice", "mean", "max", "min")


@dataclass(frozen=True)
class Uniform:
    """A tensor all of whose elements are the same number."""

    value: float


@dataclass(frozen=True)
class Multiple:
    """A number times a term, or the parts of it that ranks hold.

    Attributes
    ----------
    term : int
    scale : float
    layouts : tuple of Layout
        One for each mesh axis; empty in the reference.
    """

    term: int
    scale: float = 1.0
    layouts: tuple[Layout, ...] = ()


Value = Uniform | Multiple | None
Values = tuple[Value, ...]
Key = tuple[object, ...]


@dataclass(frozen=True)
class KnownTerm:
    """A value of the reference, up to a factor.

    Attributes
    ----------
    name : str
        The first value of the reference that is a multiple of it.
    shape : tuple of int
    base : int
        The term that it is a reshape of; else its own number.
    index_of : str
        The input of integers whose elements it holds, if it does.
    """

    name: str
    shape: tuple[int, ...]
    base: int
    index_of: str = ""


@dataclass(frozen=True, eq=False)
class TermCall:
    """A call of the reference, and the terms of its results."""

    call: ir.Call
    rule: Rule
    results: tuple[int, ...]


def shape_of(ty: relax.TensorType) -> tuple[int, ...]:
    """Return the shape of a tensor type."""
    return tuple(int(n) for n in ty.shape)


def leaves(call: ir.Call) -> list[tuple[relax.Expr, int, relax.TensorType]]:
    """Return the tensors that a call reads: (expression, position in it, type)."""
    return [leaf for arg in tensor_args(call) for leaf in leaves_of(arg)]


def result_types(call: ir.Call) -> list[relax.TensorType]:
    """Return the types of the results of a call."""
    return list(getattr(call.ty, "fields", [call.ty]))


def normal(operands: Sequence[Value], rule: Rule) -> tuple[Key, float]:
    """Return operands without the factors that a linear op passes on, and these factors.

    The operands of a linear group (both of a sum) keep the ratios of their factors.
    """
    ratios = [v.scale if isinstance(v, Multiple) else 1.0 for v in operands]
    scale, seen = 1.0, set[int]()
    for group in rule.linear:
        lead = next((ratios[i] for i in group if isinstance(operands[i], Multiple)), None)
        if lead is not None and not seen & set(group):
            seen |= set(group)
            scale *= lead
            for i in group:
                ratios[i] /= lead
    items: list[Key] = []
    for value, ratio in zip(operands, ratios):
        if isinstance(value, Multiple):
            items.append(("term", value.term, rounded(ratio)))
        elif isinstance(value, Uniform):
            items.append(("number", rounded(value.value * ratio)))
    return tuple(items), scale


def call_key(call: ir.Call, operands: Sequence[Value], rule: Rule) -> tuple[Key, float]:
    """Return what calls of the same term have in common, and a factor; a mean is a sum."""
    items, scale = normal(operands, rule)
    op = op_name(call)
    if op == "mean":
        scale *= math.prod(shape_of(call.ty)) / math.prod(shape_of(leaves(call)[0][2]))
    return ("sum" if op == "mean" else op, items), scale


def rounded(number: float) -> float:
    """Return a number by which factors and constants are compared."""
    return float(f"{number:.{_DIGITS - 1}g}") + 0.0


def same_attributes(a: ir.Call, b: ir.Call) -> bool:
    """Return whether two calls of an op differ in their tensors and shapes alone."""
    if len(a.args) != len(b.args) or not _equal(a.attrs, b.attrs):
        return False
    if op_name(a) in _SHAPED:
        return True
    pairs = [(x, y) for x, y in zip(a.args, b.args) if not is_tensors(x.ty)]
    return all(_equal(x, y) for x, y in pairs)


def _equal(a: object, b: object) -> bool:
    return bool(a is b or tvm_ffi.structural_equal(a, b))


def folded(call: ir.Call, operands: Sequence[Value]) -> Value:
    """Return the result of a call where constants alone decide it, as one of its operands."""
    op = op_name(call)
    if op in ("zeros", "ones"):
        return Uniform(float(op == "ones"))
    size = math.prod(shape_of(call.ty)) if isinstance(call.ty, relax.TensorType) else 0
    if op == "where" and isinstance(operands[0], Uniform):
        return _if_same_shape(call, operands, 1 if operands[0].value else 2)
    if operands and all_uniform(operands):
        numbers = [v.value for v in operands]
        if op in _ELEMENTWISE:
            return Uniform(float(_ELEMENTWISE[op](*numbers)))
        if op in (*_SAME, "full"):
            return Uniform(numbers[0])
        if op == "sum":
            return Uniform(numbers[0] * math.prod(shape_of(leaves(call)[0][2])) / size)
    if op in ("multiply", "divide") and isinstance(operands[-1], Uniform):
        return _times(call, operands, 0, operands[-1].value, op == "divide")
    if op == "multiply" and isinstance(operands[0], Uniform):
        return _times(call, operands, 1, operands[0].value, False)
    return None


def all_uniform(values: Sequence[Value]) -> TypeGuard[Sequence[Uniform]]:
    """Return whether all values are uniform."""
    return all(isinstance(v, Uniform) for v in values)


def _times(
    call: ir.Call, operands: Sequence[Value], chosen: int, number: float, divides: bool
) -> Value:
    value = _if_same_shape(call, operands, chosen)
    if not isinstance(value, Multiple) or number == 0:
        return Uniform(0.0) if isinstance(value, Multiple) and not divides else None
    scale = value.scale / number if divides else value.scale * number
    return Multiple(value.term, scale, value.layouts)


def _if_same_shape(call: ir.Call, operands: Sequence[Value], chosen: int) -> Value:
    same = shape_of(leaves(call)[chosen][2]) == shape_of(call.ty)
    return operands[chosen] if same or isinstance(operands[chosen], Uniform) else None


def constant_of(const: GenericConst) -> Array:
    """Return the value of a constant."""
    value = const.value
    return np.asarray(value.numpy() if isinstance(value, tvm.runtime.Tensor) else value)


class ReferenceTerms:
    """The terms of a reference, found by what computes them.

    ``scales`` has by term the factor of the value that it is named after.

    Parameters
    ----------
    mod : IRModule
        Holds the reference.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.terms: list[KnownTerm] = []
        self.calls: dict[Key, list[TermCall]] = {}
        self.reshapes: dict[int, list[int]] = {}
        self.scales: dict[int, float] = {}
        self._arrays: dict[Key, int] = {}

    def added(self, name: str, shape: tuple[int, ...], base: int | None, index_of: str = "") -> int:
        """Return the number of a new term."""
        number = len(self.terms)
        self.terms.append(KnownTerm(name, shape, number if base is None else base, index_of))
        self.reshapes.setdefault(self.terms[-1].base, []).append(number)
        return number

    def array(self, value: Array) -> int:
        """Return the term of a constant."""
        key = value.dtype.str, value.shape, value.tobytes()
        if key not in self._arrays:
            self._arrays[key] = self.added("a constant", value.shape, None)
        return self._arrays[key]

    def reshaped(self, term: int, shape: tuple[int, ...], name: str) -> int:
        """Return the term that is a reshape of another."""
        base = self.terms[term].base
        known = [n for n in self.reshapes[base] if self.terms[n].shape == shape]
        return known[0] if known else self.added(name, shape, base, self.terms[term].index_of)

    def called(self, call: ir.Call, operands: Sequence[Value], name: str) -> Values:
        """Return the results of a call of the reference."""
        rule = rule_of(call, self.mod)
        key, scale = call_key(call, operands, rule)
        known = self.calls.setdefault(key, [])
        types = result_types(call)
        for same in known:
            if same_attributes(same.call, call) and _equal(same.call.ty, call.ty):
                break
        else:
            numbers = tuple(self.added(name, shape_of(ty), None) for ty in types)
            same = TermCall(call, rule, numbers)
            known.append(same)
        return tuple(Multiple(number, scale) for number in same.results)
