# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find producers and readers of values, looking through views to the memory behind them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from functools import cached_property

from tvm_distir.performance.program.parts import Function

FLOATS = ("float64", "float32", "float16", "bfloat16")
CAST = "relax.astype"
GRADIENT = re.compile(r"grad(?:ient)?(?:\d|_\d|\.|$)")
"""Names of values that are gradients given to a function."""
CROSSING = re.compile(r"crossing(?:\.|$)")
"""Names of values that the first half of a divided backward pass gives to the second."""


class Dataflow:
    """Producers and readers of the values of a function.

    Parameters
    ----------
    fn : Function
    casts : bool
        Whether casts between floats are views; those that the function returns, directly or
        through views, are not.
    plain : collection of int
        Casts that are none.

    Attributes
    ----------
    fn : Function
    views : set of int
        Ops that only show a value's memory.
    source : list of int
        The value whose memory each value uses.
    maker : dict of int to int
        The op that produces each value.
    reads : list of tuple of int
        The values with memory that each op reads.
    readers : dict of int to list of int
        The ops, without views, that read each value that has memory, directly or through views.
    kept : set of int
        Values with memory that the function returns, directly or through views.
    """

    def __init__(self, fn: Function, casts: bool, plain: Collection[int] = ()) -> None:
        self.fn, self.casts, self.plain = fn, casts, frozenset(plain)
        returned = set(fn.results)
        for op in reversed(fn.ops):
            if op.kind == "view" and op.outputs[0] in returned:
                returned.add(op.inputs[0])
        self.views = {
            number
            for number, op in enumerate(fn.ops)
            if op.kind == "view"
            or (casts and returned.isdisjoint(op.outputs) and self.is_cast(number))
        }
        self.source = source = list(range(len(fn.values)))
        self.maker: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.reads: list[tuple[int, ...]] = []
        for number, op in enumerate(fn.ops):
            self.maker.update(dict.fromkeys(op.outputs, number))
            self.reads.append(tuple(dict.fromkeys([source[value] for value in op.inputs])))
            if number in self.views:
                source[op.outputs[0]] = source[op.inputs[0]]
                continue
            for value in self.reads[-1]:
                self.readers.setdefault(value, []).append(number)
        self.returned = {self.source[value] for value in fn.results}

    def is_cast(self, number: int) -> bool:
        """Return whether an op changes a floating type to another."""
        op = self.fn.ops[number]
        if op.op != CAST or len(op.inputs) != 1 or number in self.plain:
            return False
        ends = self.fn.values[op.inputs[0]], self.fn.values[op.outputs[0]]
        return all(value.dtype in FLOATS for value in ends)

    @cached_property
    def elements(self) -> list[int]:
        """Return the number of elements of each value."""
        return [math.prod(value.shape) for value in self.fn.values]

    def qualifiers(self, number: int) -> tuple[str, ...]:
        """Return what the operands of an op are, as members of rules may ask for.

        ``scalar``: one of several has a single element. ``vector``: one of several has fewer dims
        than the result, and is no scalar. ``batched``: both are batches of matrices.
        """
        op = self.fn.ops[number]
        out = self.fn.values[op.outputs[0]].shape if op.outputs else ()
        sizes = [self.elements[value] for value in op.inputs] if len(op.inputs) > 1 else []
        ranks = [len(self.fn.values[value].shape) for value in op.inputs]
        thin = any(size > 1 and rank < len(out) for size, rank in zip(sizes, ranks, strict=False))
        batched = op.kernel_class == "matmul" and len(ranks) > 1 and min(ranks[:2]) > 2
        known = {"scalar": 1 in sizes, "vector": thin, "batched": batched}
        return tuple(name for name, holds in known.items() if holds)

    def neighbours(self, number: int) -> list[int]:
        """Return the neighbours of an op: producers and readers of its values, scalars aside."""
        numbers = []
        for value in self.reads[number]:
            if value in self.maker and self.elements[value] > 1:
                numbers.append(self.maker[value])
        for value in self.fn.ops[number].outputs:
            if self.elements[value] > 1:
                numbers.extend(self.readers.get(value, ()))
        return numbers

    def narrowed(self) -> dict[int, tuple[str, int]]:
        """Return, per value with memory, the narrowest type of its casts and the bytes then.

        What the caller gives or gets stays as it is.
        """
        fixed = {*self.fn.params, *self.returned}
        casts = [n for n in range(len(self.fn.ops)) if self.casts and self.is_cast(n)]
        result: dict[int, tuple[str, int]] = {}
        for number in casts:
            op = self.fn.ops[number]
            value, cast = self.source[op.inputs[0]], self.fn.values[op.outputs[0]]
            if value not in self.maker or value in fixed:
                continue
            if cast.bytes < result.get(value, ("", self.fn.values[value].bytes))[1]:
                result[value] = (cast.dtype, cast.bytes)
        return result

    def after_gradients(self) -> set[int]:
        """Return the ops that wait for a given gradient: those of the backward pass."""
        return self._behind(GRADIENT)

    def in_backward(self) -> set[int]:
        """Return the ops of the backward pass, the second half of a divided one included."""
        return self._behind(GRADIENT) | self._behind(CROSSING)

    def _behind(self, names: re.Pattern[str]) -> set[int]:
        """Return the ops that depend on parameters whose names match."""
        late = {p for p in self.fn.params if names.match(self.fn.values[p].name)}
        numbers: set[int] = set()
        for number, op in enumerate(self.fn.ops):
            if not late.isdisjoint(op.inputs):
                late.update(op.outputs)
                numbers.add(number)
        return numbers

    def closes_circle(self, group: Collection[int], number: int) -> bool:
        """Return whether adding an op to a group would close a cycle through an op outside."""
        members = {*group, number}
        last, reached = max(members), set[int]()
        todo = [*members]
        while todo:
            op = todo.pop()
            is_outside = op in reached
            for value in self.fn.ops[op].outputs:
                for reader in self.readers.get(value, ()):
                    if reader in members:
                        if is_outside:
                            return True
                    elif reader < last and reader not in reached:
                        reached.add(reader)
                        todo.append(reader)
        return False
