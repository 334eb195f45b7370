# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds the labelling problem of one function along all axes of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...ir import P, R
from ..decision import Signature
from ..graph import Graph, Node
from ..reach import Reach
from ..solve import Alternative, labels_on
from .edges import JointEdges
from .problem import NO_END, End, JointProblem, Spliced, Summary
from .tables import JointTables


class JointBuilder:
    """Builds the problem of one graph: nodes first, then the edges between them.

    Parameters
    ----------
    tables : JointTables
        Of the mesh.
    g : Graph
    reach : Reach
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
        reach: Reach,
        summary_of: Callable[[int], Summary],
        forced: Signature | None = None,
    ) -> None:
        self.tables, self.forms, self.prices = tables, tables.forms, tables.prices
        self.g, self.reach, self.summary_of, self.forced = g, reach, summary_of, forced
        self.mesh = tables.axes[0].mesh
        self.model = JointProblem()
        count = len(tables.axes)
        self._none = (0,) * count
        self._waiting = [reach.partial[a] for a in tables.mesh_axes]

    def run(self) -> JointProblem:
        """The problem.

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
        """Add all parameters; most have one label only along each axis."""
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
                column = [[Alternative((), (x,), None)] for x in form if x is not None]
                known[form] = (self.forms.ends(column, None), -1)
            self.model.ends.append(known[form])

    def _free_param(self, v: int, form: Sequence[int | None]) -> None:
        """Add a parameter that has a choice along some axes, with what its bytes weigh."""
        g, columns = self.g, list[list[int]]()
        for label, a in zip(form, self.tables.mesh_axes):
            may_wait = not g.public and bool(self.reach.partial[a][v])
            columns.append([label] if label is not None else self._labels(v, a, may_wait))
        states = self.forms.ends(
            [[Alternative((), (x,), None) for x in labels] for labels in columns], self._shape(v)
        )
        variable = self._add((states, self.model.variable(len(states))))
        if variable >= 0 and g.public:
            self._put((variable,), self.tables.held(states, g.values[v].size_bytes))

    def _pin(self, _: int, node: Node) -> None:
        """Add an annotation: along each axis as it says, or open."""
        if node.mesh != self.mesh:
            self._trivial(node)
            return
        v, columns = node.results[0], []
        for axis, a in zip(self.tables.axes, self.tables.mesh_axes):
            label = node.pin[axis.index] if node.pin is not None else None
            may_wait = bool(self.reach.partial[a][v])
            columns.append([label] if label is not None else self._labels(v, a, may_wait))
        states = self.forms.ends(
            [[Alternative((x,), (x,), None) for x in labels] for labels in columns],
            self._shape(v),
        )
        self._add((states, self.model.variable(len(states))))

    def _move(self, _: int, node: Node) -> None:
        """Add a move to another mesh: free of form; into this one, its bytes cross."""
        source, target = node.operands[0], node.results[0]
        leaves, comes = self._here(source), self._here(target)
        if not leaves and not comes:
            self._trivial(node)
            return
        v = source if leaves else target
        columns = [
            [
                Alternative((x,), (R,), None) if leaves else Alternative((R,), (x,), None)
                for x in self._labels(v, a, False)
            ]
            for a in self.tables.mesh_axes
        ]
        states = self.forms.ends(columns, self._shape(v))
        variable = self._add((states, self.model.variable(len(states))))
        if variable >= 0 and not leaves:
            self._put((variable,), self.tables.moved(states, self.g.values[v].size_bytes))

    def _ret(self, k: int, node: Node) -> None:
        v, g = node.operands[0], self.g
        columns: list[list[int]] = []
        for a in self.tables.mesh_axes:
            if not self._here(v):
                columns.append([R])
            elif self.forced is not None:
                columns.append([self.forced[a][1][k - g.rets[0]]])
            else:
                may_wait = not g.public and bool(self.reach.partial[a][v])
                columns.append(self._labels(v, a, may_wait))
        states = self.forms.ends(
            [[Alternative((x,), (), None) for x in labels] for labels in columns],
            self._shape(v),
        )
        self._add((states, self.model.variable(len(states))))

    def _call(self, k: int, _: Node) -> None:
        m, summary = self.model, self.summary_of(k)
        first = len(m.domains)
        m.domains += summary.domains
        for scope, table in summary.factors:
            self._put(tuple([first + u for u in scope]), (table, 0))
        m.constant += summary.constant
        m.feasible = m.feasible and summary.feasible
        params, rets = (
            tuple([(states, first + u if u >= 0 else u) for states, u in ends])
            for ends in (summary.params, summary.rets)
        )
        m.spliced[k] = Spliced(range(first, len(m.domains)), params, rets)
        m.ends.append(NO_END)

    def _trivial(self, node: Node) -> None:
        """Add a node that is whole along all axes."""
        self._add((self.forms.whole(len(node.operands), len(node.results)), -1))

    def _add(self, end: End) -> int:
        self.model.ends.append(end)
        return end[1]

    def _put(self, scope: tuple[int, ...], table: tuple[int, int]) -> None:
        self.model.put(self.prices, scope, table)

    def _here(self, v: int) -> bool:
        return v >= 0 and self.g.values[v].mesh == self.mesh

    def _shape(self, v: int) -> Sequence[object]:
        return self.g.values[v].shape if v >= 0 else ()

    def _labels(self, v: int, a: int, may_wait: bool) -> list[int]:
        found = labels_on(self.g, self.reach, v, a, self.prices.axes[a].size, {})
        return [*found, P] if may_wait else found


__all__ = ["JointBuilder"]
