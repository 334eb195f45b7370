# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds the sharding problem of a function along all axes of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.propagation.decision import Signature
from tvm_distir.core.propagation.graph.graph import Graph, Node
from tvm_distir.core.propagation.reach import ReachableAxes
from tvm_distir.core.propagation.solve.alternatives import OpStrategy
from tvm_distir.core.propagation.solve.boundary import labels_on

from .edges import JointEdges
from .states import JointProblem, JointStrategies, JointSummary
from .tables import JointTables

End = tuple[JointStrategies, int]
"""States of a node and the variable that picks a state (-1: a single state)."""

NO_END: End = (JointStrategies(-1, ((),)), -1)
"""Of a call of a function, whose ends are those of the function's summary."""


class JointBuilder:
    """Builder of the problem of a graph: nodes first, then the edges between them.

    Parameters
    ----------
    tables : JointTables
        Of the mesh.
    g : Graph
    reach : ReachableAxes
        Of the graph.
    summary_of : callable
        Gives the summary of the function that a call node calls.
    forced : Signature, optional
        What all calls of the function must share.
    """

    def __init__(
        self,
        tables: JointTables,
        g: Graph,
        reach: ReachableAxes,
        summary_of: Callable[[int], JointSummary],
        forced: Signature | None = None,
    ) -> None:
        self.tables, self.forms, self.prices = tables, tables.forms, tables.prices
        self.g, self.reach, self.summary_of, self.forced = g, reach, summary_of, forced
        self.mesh = tables.axes[0].mesh
        self.model = JointProblem()
        count = len(tables.axes)
        self._none = (0,) * count
        self._open: Sequence[int | None] = [None] * count
        self._waiting = [reach.partial[a] for a in tables.mesh_axes]

    def run(self) -> JointProblem:
        """Build the problem.

        Raises
        ------
        TooManyStates
        """
        g, first = self.g, len(self.g.params)
        build = {"pin": self._pin, "move": self._move, "call": self._call, "ret": self._ret}
        self._params()
        masks = zip(*[self.reach.mask[a][first:] for a in self.tables.mesh_axes])
        for k, (node, mask) in enumerate(zip(g.nodes[first:], masks), first):
            if node.kind == "op":
                self._op(node, mask)
            else:
                build[node.kind](k, node)
        JointEdges(self.tables, g, self.reach, self.model).run()
        return self.model

    def _op(self, node: Node, masks: tuple[int, ...]) -> None:
        """Add an op, of which the axes reach the factors of masks, with the table of its work."""
        rule = node.rule
        if rule is None or node.mesh != self.mesh:
            self._trivial(node)
            return
        partials = self._none
        if rule.carrying:
            operands = node.operands
            partials = tuple(
                [
                    sum([1 << i for i in rule.carrying if operands[i] >= 0 and wait[operands[i]]])
                    for wait in self._waiting
                ]
            )
        if masks == self._none and partials == self._none:
            self._trivial(node)
            return
        states, table = self.tables.op(rule, masks, partials)
        m = self.model
        if table is None:
            m.ends.append((states, -1))
            return
        variable, times = len(m.domains), self.g.repeat
        m.domains.append(len(states.items))
        m.ends.append((states, variable))
        m.factors[variable,], low = table if times == 1 else self.prices.times(table, times)
        m.constant += low

    def _params(self) -> None:
        """Add all parameters; most have a single label along each axis."""
        g, columns = self.g, list[list[int | None]]()
        for i, a in enumerate(self.tables.mesh_axes):
            labels = self.reach.param_labels(g, self.tables.axes[i], a)
            if self.forced is not None:
                forced = self.forced[a][0]
                labels = [x if self._here(v) else R for x, v in zip(forced, g.param_values)]
            columns.append(labels)
        known: dict[tuple[int | None, ...], End] = {}
        for v, form in zip(g.param_values, zip(*columns)):
            if None in form:
                self._free_param(v, form)
                continue
            if form not in known:
                column = [[OpStrategy((), (x,), None)] for x in form if x is not None]
                known[form] = (self.forms.ends(column, None), -1)
            self.model.ends.append(known[form])

    def _free_param(self, v: int, form: Sequence[int | None]) -> None:
        """Add a parameter that has a choice along some axes, with the cost of its bytes."""
        g = self.g
        labels = self._labels(v, form, may_wait=not g.public)
        end = self._boundary(v, [[OpStrategy((), (x,), None) for x in label] for label in labels])
        if g.public:
            self._price(end, self.tables.held, v)

    def _pin(self, _: int, node: Node) -> None:
        """Add an annotation, fixed or free along each axis."""
        if node.mesh != self.mesh:
            self._trivial(node)
            return
        v, pin = node.results[0], node.pin
        form = [None if pin is None else pin[axis.index] for axis in self.tables.axes]
        labels = self._labels(v, form, may_wait=True)
        self._boundary(v, [[OpStrategy((x,), (x,), None) for x in label] for label in labels])

    def _move(self, _: int, node: Node) -> None:
        """Add a move to another mesh; it accepts any placement, and bytes into this mesh cost."""
        source, target = node.operands[0], node.results[0]
        leaves, comes = self._here(source), self._here(target)
        if not leaves and not comes:
            self._trivial(node)
            return
        v = source if leaves else target
        labels = self._labels(v, self._open, may_wait=False)
        if leaves:
            self._boundary(v, [[OpStrategy((x,), (R,), None) for x in label] for label in labels])
        else:
            columns = [[OpStrategy((R,), (x,), None) for x in label] for label in labels]
            self._price(self._boundary(v, columns), self.tables.moved, v)

    def _ret(self, k: int, node: Node) -> None:
        """Add a result of the function."""
        v, g = node.operands[0], self.g
        form: Sequence[int | None] = self._open
        if not self._here(v):
            form = [R] * len(self._open)
        elif self.forced is not None:
            form = [self.forced[a][1][k - g.rets[0]] for a in self.tables.mesh_axes]
        labels = self._labels(v, form, may_wait=not g.public)
        self._boundary(v, [[OpStrategy((x,), (), None) for x in label] for label in labels])

    def _call(self, k: int, _: Node) -> None:
        self.model.splice(self.prices, k, self.summary_of(k))
        self.model.ends.append(NO_END)

    def _trivial(self, node: Node) -> None:
        """Add a node that is replicated along all axes."""
        self.model.ends.append((self.forms.whole(len(node.operands), len(node.results)), -1))

    def _labels(self, v: int, form: Sequence[int | None], *, may_wait: bool) -> list[list[int]]:
        """Return per axis the label of a boundary value where it is given, else all it may have."""
        columns = []
        for label, a, waiting in zip(form, self.tables.mesh_axes, self._waiting):
            if label is not None:
                columns.append([label])
                continue
            labels = labels_on(self.g, self.reach, v, a, self.prices.axes[a].size, {})
            columns.append([*labels, P] if may_wait and waiting[v] else labels)
        return columns

    def _boundary(self, v: int, columns: Sequence[Sequence[OpStrategy]]) -> End:
        """Add a node at a value's boundary, from its alternatives along each axis."""
        states = self.forms.ends(columns, self.g.values[v].shape if v >= 0 else ())
        domains, variable = self.model.domains, -1
        if len(states) > 1:
            variable = len(domains)
            domains.append(len(states))
        self.model.ends.append((states, variable))
        return states, variable

    def _price(
        self, end: End, table_of: Callable[[JointStrategies, int], tuple[int, int]], v: int
    ) -> None:
        """Add the cost of a value's bytes to the states of its node."""
        states, variable = end
        if variable >= 0:
            table = table_of(states, self.g.values[v].size_bytes)
            self.model.put(self.prices, (variable,), table)

    def _here(self, v: int) -> bool:
        return v >= 0 and self.g.values[v].mesh == self.mesh


__all__ = ["JointBuilder"]
