# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write calls that need no redistribution natively, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ir.placement import R
from tvm_distir.core.propagation.graph.graph import CONST, Node
from tvm_distir.core.rewriting.native.call_rewriting import CallWriter

from .placed_values import PlacedValues

if TYPE_CHECKING:
    from tvm import ir, relax


class PlainCalls:
    """A writer of runs of calls that change only in their types.

    Such a call has a single result, and of this, and of all that it reads, every reader wants the
    form in which it is produced; a constant it takes whole. Most are so; where a call is not,
    :meth:`write` stops before it.

    Parameters
    ----------
    values : PlacedValues
        The values of the specialization.
    """

    def __init__(self, values: PlacedValues) -> None:
        self.values = values
        self._types: list[ir.Type] = []
        self._meshes = on = list[int]()  # on which those lie
        self._which = self._numbers()
        # The writer, native, keeps what it calls: to that the calls that it belongs to are unknown,
        # else both would live for ever.
        self._writer = CallWriter(lambda old, number: values.constant(old, on[number]))
        self._first = 0  # binding of the open block
        self._new: list[tuple[int, Any]] = []  # what the writer has not heard of

    def _numbers(self) -> list[int]:
        """Return the number of the type of each binding, -1 for other bindings."""
        values, operands = self.values, list[int]()
        g, types, numbers = values.g, self._types, dict[tuple[int, int, Any], int]()
        if any(node.kind == "move" for node in g.nodes):  # one variable, several values
            return [-1] * len(g.bound)
        for key in g.bound:
            k = g.node_of.get(key, -1)
            node = g.nodes[k]
            if k < 0 or key not in g.tensors or not self._fits(k, node):
                operands.append(-1)
                continue
            v = node.results[0]
            ty, layout = g.values[v].ty, values.route(v).root
            number = numbers.setdefault((id(ty), node.mesh, layout), len(types))
            if number == len(types):
                types.append(values.type_of(v, layout))
                self._meshes.append(node.mesh)
            operands.append(number)
        return operands

    def _fits(self, k: int, node: Node) -> bool:
        """Return whether a node is a call of an op whose result stays, and its constants too."""
        operands = node.operands
        if node.kind != "op" or not operands or not self.values.stays(node.results[0]):
            return False
        if CONST not in operands:
            return True
        values = self.values
        needs = [
            values.decision.needs(values.inst, k, i, node.mesh)
            for i, v in enumerate(operands)
            if v == CONST
        ]
        return all(label == R for layout in needs for label in layout)

    def know(self, variables: Iterable[tuple[int, Any]]) -> None:
        """Record the replacements of old variables, by their handles."""
        values = self.values
        plain, env = values.g.tensors, values.g.env
        self._new += [
            (key, x) for key, x in variables if key in plain and values.stays(env[key][0])
        ]

    def open(self, first: int, bindings: Sequence[relax.Binding], inside: Sequence[int]) -> None:
        """Begin a block.

        Parameters
        ----------
        first : int
            Number of its first binding.
        bindings : array of Binding
        inside : sequence of int
            Handles of its outputs that have another name inside it.
        """
        self._first = first
        which = self._which[first : first + len(bindings)]
        self._writer.open(bindings, self._types, which, self.values.dataflow, inside)

    def write(self, number: int) -> int:
        """Write the run of plain bindings from a number on; return its length."""
        if self._which[number] < 0:
            return 0
        if self._new:
            self._writer.know(*zip(*self._new))
            self._new.clear()
        values = self.values
        variables, bindings = self._writer.write(number - self._first)
        values.bindings += bindings
        exprs, env = values.exprs, values.g.env
        for key, new in zip(values.g.bound[number : number + len(variables)], variables):
            exprs[key] = new
            values.note_root(env[key][0], new)
        return len(variables)
