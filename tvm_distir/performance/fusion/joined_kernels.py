# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Join kernels of the same name that do not depend on each other into single kernels."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Hashable

from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.program import Program
from tvm_distir.support import reachable

from .dataflow import Dataflow

_PRODUCTS = ("relax.matmul", "relax.dist.expert_matmul", "linear")


def joined(program: Program, names: Collection[str]) -> Program:
    """Join kernels of a grouped program.

    Engines keep the weights of query, key and value in a single matrix, and so those of gate and
    up: products of the same operand are a single product. Kernels of other names are joined that
    rotate, or append, several values.

    Parameters
    ----------
    program : Program
    names : collection of str
        Names of the kernels.
    """
    functions = {name: _Joiner(fn, names).run() for name, fn in program.functions.items()}
    return dataclasses.replace(program, functions=functions)


class _Joiner:
    """Writer of a function with joined kernels."""

    def __init__(self, fn: Function, names: Collection[str]) -> None:
        self.fn, self.names = fn, names
        self.flow = Dataflow(fn, True)
        self.groups: dict[int, list[int]] = {}

    def run(self) -> Function:
        """Return the function."""
        families: dict[Hashable, list[int]] = defaultdict(list)
        for number, op in enumerate(self.fn.ops):
            if op.kind == "compute" and op.op in self.names and op.outputs:
                families[self._family(op)].append(number)
        for numbers in families.values():
            self._join(numbers)
        if not self.groups:
            return self.fn
        ops = {
            number: self._merged(self.groups[number]) if number in self.groups else op
            for number, op in enumerate(self.fn.ops)
            if self.groups.get(number, [number])[0] == number
        }
        return dataclasses.replace(self.fn, ops=tuple(_in_order(ops)))

    def _family(self, op: Op) -> Hashable:
        """Return what kernels that may be joined have in common."""
        if op.op in _PRODUCTS:
            first = self.flow.source[op.inputs[0]]
            lead = self.fn.values[op.outputs[0]].shape[:-1]
            return "product", op.op, op.kernel_class, op.dtype, first, lead, len(op.outputs)
        return op.op, op.kernel_class, op.dtype

    def _join(self, numbers: list[int]) -> None:
        """Join each kernel of a family with the last ones before it that it is independent of."""
        group = numbers[:1]
        for number in numbers[1:]:
            separate = number in self._ancestors(group) or self._ancestors([number]) & set(group)
            group = [number] if separate else [*group, number]
            if len(group) > 1:
                self.groups.update(dict.fromkeys(group, group))

    def _ancestors(self, numbers: list[int]) -> set[int]:
        """Return ops and those that they depend on, where kernels are joined as so far."""

        def makers(number: int) -> list[int]:
            read = (self.flow.maker.get(value) for value in self.fn.ops[number].inputs)
            return [n for m in read if m is not None for n in self.groups.get(m, [m])]

        return set(reachable(numbers, makers))

    def _merged(self, group: list[int]) -> Op:
        """Return the kernel that does the work of several."""
        ops = [self.fn.ops[number] for number in group]
        inputs = tuple(dict.fromkeys(value for op in ops for value in op.inputs))
        read = sum(op.bytes_read for op in ops)
        if ops[0].op in _PRODUCTS:  # the operand is read once
            read -= (len(ops) - 1) * self.fn.values[self.flow.source[ops[0].inputs[0]]].bytes
        return ops[0]._replace(
            inputs=inputs,
            outputs=tuple(value for op in ops for value in op.outputs),
            flops=sum(op.flops for op in ops),
            bytes_read=max(read, 0),
            bytes_written=sum(op.bytes_written for op in ops),
            modelled=all(op.modelled for op in ops),
        )


def _in_order(ops: dict[int, Op]) -> list[Op]:
    """Return ops so that each follows those that it depends on, else in the order of before."""
    maker = {value: number for number, op in ops.items() for value in op.outputs}
    placed: set[int] = set()
    result: list[Op] = []

    def visit(number: int) -> None:
        todo = [number]
        while todo:
            current = todo[-1]
            missing = [
                maker[value]
                for value in ops[current].inputs
                if value in maker and maker[value] not in placed
            ]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if current not in placed:
                placed.add(current)
                result.append(ops[current])

    for number in ops:
        visit(number)
    return result
