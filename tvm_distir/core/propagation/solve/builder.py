# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds the sharding problem of a function along some axes of a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.propagation.decision import Instance, Signature
from tvm_distir.core.propagation.graph.graph import Node
from tvm_distir.core.propagation.instances import LocalSizes
from tvm_distir.core.propagation.reach import ReachableAxes

from .byte_costs import ByteCosts
from .edges import EdgeTables, Placed
from .problem import End, LabellingProblem, Summary
from .strategies import OpStrategy, Others, Strategies, fits
from .tables import Interned

NO_END: End = (Strategies(-1, ((),)), -1)
"""The end of a call of a function, whose ends are those of the function's summary."""


class ProblemBuilder:
    """Builder of the problem of an instance: nodes first, then the edges between them.

    Parameters
    ----------
    costs : ByteCosts
        The costs along the axes.
    inst : Instance
        The instance, with the axes undecided.
    reach : ReachableAxes
        The reachable axes of the instance's graph.
    sizes : (list of int, dict)
        Bytes of each value local to the other axes, and how its dims are sharded by them.
    summary_of : callable
        Gives the summary of the function that a call node calls.
    forced : Signature, optional
        The signature that all calls of the function must share.
    """

    def __init__(
        self,
        costs: ByteCosts,
        inst: Instance,
        reach: ReachableAxes,
        sizes: LocalSizes,
        summary_of: Callable[[int], Summary],
        forced: Signature | None = None,
    ) -> None:
        self.costs, self.strategies, self.cost_tables = costs, costs.strategies, costs.cost_tables
        self.inst, self.g, self.reach = inst, inst.graph, reach
        self.bytes, self.cut = sizes
        self.summary_of, self.forced = summary_of, forced
        self.mesh = costs.axes[0].mesh
        self.model = LabellingProblem()
        self.given: list[Placed] = [None] * (len(self.g.values) + 1)  # at the end, for constants
        self._none = (0,) * len(costs.axes)
        self._open: Sequence[int | None] = [None] * len(costs.axes)
        self._waiting = [reach.partial[a] for a in costs.numbers]  # per axis: partial sums
        self._waits: Sequence[int] = self._waiting[0]
        if len(self._waiting) > 1:
            self._waits = [*map(max, *self._waiting)]

    def run(self) -> LabellingProblem:
        """Build the problem.

        Raises
        ------
        TooManyStrategies
        """
        g, first = self.g, len(self.g.params)
        build = {"pin": self._pin, "move": self._move, "call": self._call, "ret": self._ret}
        self._params()
        masks = zip(*[self.reach.mask[a][first:] for a in self.costs.numbers])
        rows = zip(g.nodes[first:], masks, self._others(first))
        for k, (node, mask, others) in enumerate(rows, first):
            if node.kind == "op":
                self._op(node, mask, others)
            else:
                build[node.kind](k, node)
        EdgeTables(self.costs, g, self.reach, self.model, self.bytes, self.given).run()
        return self.model

    def _others(self, first: int) -> Iterable[Others]:
        """Return the decisions of the other axes of the mesh, per node from a first on."""
        columns: list[Iterable[tuple[int, OpStrategy | None]]] = []
        for b, axis in enumerate(self.cost_tables.axes):
            if axis.mesh != self.mesh or b in self.costs.numbers:
                continue
            chosen = self.inst.choice.get(b)
            if chosen is not None:
                columns.append(zip(itertools.repeat(axis.size), chosen[first:]))
            else:  # an axis that does not reach the node splits nothing
                masks = self.reach.mask[b][first:]
                columns.append([(axis.size if mask else 1, None) for mask in masks])
        return zip(*columns) if columns else itertools.repeat(())

    def _op(self, node: Node, masks: tuple[int, ...], others: Others) -> None:
        """Add an op, of which the axes reach the factors of masks, with the table of its work."""
        rule = node.rule
        if rule is None or node.mesh != self.mesh:
            self._trivial(node)
            return
        partials = self._none
        if rule.carrying:
            operands, waits = node.operands, self._waits
            carried = [i for i in rule.carrying if operands[i] >= 0 and waits[operands[i]]]
            if carried:
                partials = tuple(
                    [sum([1 << i for i in carried if x[operands[i]]]) for x in self._waiting]
                )
        if masks == self._none and partials == self._none:
            self._trivial(node)
            return
        strategies, table = self.costs.op(rule, masks, partials, others)
        if table is None:
            self._add(strategies, node.results)
            return
        m, times = self.model, self.g.repeat
        variable = len(m.domains)
        m.domains.append(len(strategies.items))
        m.ends.append((strategies, variable))
        m.factors[variable,], low = table if times == 1 else self.cost_tables.times(table, times)
        m.constant += low

    def _params(self) -> None:
        """Add all parameters; most have a single label along each axis."""
        g, ends, columns = self.g, self.model.ends, list[Sequence[int | None]]()
        for axis, a in zip(self.costs.axes, self.costs.numbers):
            labels: Sequence[int | None] = self.reach.param_labels(g, axis, a)
            if self.forced is not None:
                forced = self.forced[a][0]
                labels = [x if self._here(v) else R for x, v in zip(forced, g.param_values)]
            columns.append(labels)
        layouts, known = list(zip(*columns)), dict[tuple[int | None, ...], End]()
        for layout in set(layouts):
            if None not in layout:
                column = [[OpStrategy((), (x,), None)] for x in layout if x is not None]
                known[layout] = self.strategies.ends(column, None), -1
        for v, layout in zip(g.param_values, layouts):
            if layout in known:
                self.given[v] = layout
                ends.append(known[layout])
            else:
                self._free_param(v, layout)

    def _free_param(self, v: int, layout: Sequence[int | None]) -> None:
        """Add a parameter that has a choice along some axes, with the cost of its bytes."""
        labels = self._labels(v, layout, may_wait=not self.g.public)
        end = self._boundary(
            (v,), v, [[OpStrategy((), (x,), None) for x in label] for label in labels]
        )
        if self.g.public:
            self._cost(end, self.costs.held, v)

    def _pin(self, _: int, node: Node) -> None:
        """Add an annotation, fixed or free along each axis."""
        if node.mesh != self.mesh:
            self._trivial(node)
            return
        v, pin = node.results[0], node.pin
        layout = [None if pin is None else pin[axis.index] for axis in self.costs.axes]
        labels = self._labels(v, layout, may_wait=True)
        self._boundary(
            node.results, v, [[OpStrategy((x,), (x,), None) for x in label] for label in labels]
        )

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
            columns = [[OpStrategy((x,), (R,), None) for x in label] for label in labels]
            self._boundary(node.results, v, columns)
        else:
            columns = [[OpStrategy((R,), (x,), None) for x in label] for label in labels]
            self._cost(self._boundary(node.results, v, columns), self.costs.moved, v)

    def _ret(self, k: int, node: Node) -> None:
        """Add a result of the function."""
        v, g = node.operands[0], self.g
        layout: Sequence[int | None] = self._open
        if not self._here(v):
            layout = [R] * len(self._open)
        elif self.forced is not None:
            layout = [self.forced[a][1][k - g.rets[0]] for a in self.costs.numbers]
        labels = self._labels(v, layout, may_wait=not g.public)
        self._boundary(
            node.results, v, [[OpStrategy((x,), (), None) for x in label] for label in labels]
        )

    def _call(self, k: int, node: Node) -> None:
        """Add the summary of the function that a node calls."""
        summary = self.summary_of(k)
        self.model.splice(self.cost_tables, k, summary)
        for v, (strategies, variable) in zip(node.results, summary.rets):
            if variable < 0:
                self.given[v] = strategies.gives[0][0]
        self.model.ends.append(NO_END)

    def _trivial(self, node: Node) -> None:
        """Add a node that is replicated along all axes."""
        results = node.results
        self._add(self.strategies.replicated(len(node.operands), len(results)), results)

    def _labels(self, v: int, layout: Sequence[int | None], *, may_wait: bool) -> list[list[int]]:
        """Return per axis the label of a boundary value where it is given, else all it may have.

        Those are the dims that the axis reaches, replicated, and partial. A value that is given as
        partial, and is none along the axis, is replicated.
        """
        columns, g = [], self.g
        for i, (label, a) in enumerate(zip(layout, self.costs.numbers)):
            if label is not None:
                columns.append([R if label == P and not self._waiting[i][v] else label])
                continue
            active, off, cut = self.reach.active[a], g.offset[v], self.cut.get(v, {})
            labels = [
                d
                for d, n in enumerate(g.values[v].shape)
                if active[off + d] and fits(n, self.costs.ranks[i], cut.get(d, 1), True)
            ]
            columns.append([*labels, R, P] if may_wait and self._waiting[i][v] else [*labels, R])
        return columns

    def _boundary(
        self, results: Sequence[int], v: int, columns: Sequence[Sequence[OpStrategy]]
    ) -> End:
        """Add a node at the boundary of a value, from its strategies along each axis."""
        shape = self.g.values[v].shape if v >= 0 else ()
        return self._add(self.strategies.ends(columns, shape), results)

    def _add(self, strategies: Strategies, results: Sequence[int]) -> End:
        """Add a node of some results, with a variable where it has several strategies."""
        m, variable = self.model, -1
        if len(strategies.items) == 1:
            for v, layout in zip(results, strategies.gives[0]):
                self.given[v] = layout
        else:
            variable = len(m.domains)
            m.domains.append(len(strategies.items))
        m.ends.append((strategies, variable))
        return m.ends[-1]

    def _cost(self, end: End, table_of: Callable[[Strategies, int], Interned], v: int) -> None:
        """Add the cost of a value's bytes to the strategies of its node."""
        strategies, variable = end
        if variable >= 0:
            self.model.put(self.cost_tables, (variable,), table_of(strategies, self.bytes[v]))

    def _here(self, v: int) -> bool:
        return v >= 0 and self.g.values[v].mesh == self.mesh
