# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds the labelling problem of one function along all axes of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...ir import P, R
from ..decision import Signature
from ..graph import ALONE, Graph, Node, Uses
from ..reach import Reach
from ..solve import Alternative, hold_on, labels_on
from .problem import NO_END, End, JointProblem, Spliced, Summary
from .states import States
from .tables import Held, JointTables


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
        self._none, self._loose = (0,) * count, ((1, False),) * count
        self._waiting = [reach.partial[a] for a in tables.mesh_axes]
        self._stays: dict[int, Held] = {}

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
        self._edges()
        return self.model

    # nodes -----------------------------------------------------------------------------

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

    # edges -----------------------------------------------------------------------------

    def _edges(self) -> None:
        """Add what it costs to hand each value to its consumers."""
        g, m, prices = self.g, self.model, self.prices
        ends, spliced, factors, edge = m.ends, m.spliced, m.factors, self.tables.edge
        once, size_of = g.repeat == 1 and not g.repeats, [value.size_bytes for value in g.values]
        for link in g.links(self.mesh):
            v, maker, j, handed, uses, reader, reads = link
            if maker in spliced:
                (producer, variable), j = spliced[maker].rets[j], 0
            else:
                producer, variable = ends[maker]
            size_bytes = size_of[v] if once else size_of[v] * g.times(v)
            held = self._held(maker) if handed else self._loose
            if reader < 0:
                self._shared(self._readers(uses), producer, variable, j, size_bytes, held)
                continue
            if reader in spliced:
                (consumer, other), reads = spliced[reader].params[reads[0]], ALONE
            else:
                consumer, other = ends[reader]
            if variable < 0 and other < 0 and _settled(producer, j, consumer, reads):
                continue
            table = edge(producer, j, consumer, reads, size_bytes, held)
            if 0 <= variable < other and (variable, other) not in factors:  # as most tables
                factors[variable, other], low = table
                m.constant += low
            else:
                m.put_edge(prices, table, (variable, other))

    def _shared(
        self,
        readers: Sequence[tuple[States, int, tuple[int, ...]]],
        producer: States,
        variable: int,
        j: int,
        size_bytes: int,
        held: Held,
    ) -> None:
        """Add what it costs to hand a value, result j of its producer, to several consumers."""
        if variable < 0 and all(
            [other < 0 and _settled(producer, j, states, o) for states, other, o in readers]
        ):
            return
        m, prices = self.model, self.prices
        ends = tuple([(states, operands) for states, _, operands in readers])
        for count, first, rest in self.tables.share(producer, j, ends, size_bytes, held):
            shared = m.variable(count)
            m.put_edge(prices, first, (variable, shared))
            for (_, other, _), table in zip(readers, rest):
                m.put_edge(prices, table, (other, shared))

    def _readers(self, uses: Uses) -> list[tuple[States, int, tuple[int, ...]]]:
        """Consumers of a value: states, the variable that picks one, and which operands it is."""
        ends, spliced = self.model.ends, self.model.spliced
        found: list[tuple[States, int, tuple[int, ...]]] = []
        for k, positions in uses:
            if k in spliced:
                params = spliced[k].params
                found += [(*params[i], ALONE) for i in positions]
            else:
                found.append((*ends[k], positions))
        return found

    def _held(self, maker: int) -> Held:
        """Per axis what a moved byte counts as, and whether a node's values stay as they are."""
        origin = self.g.origin[maker]
        found = self._stays.get(origin)
        if found is None:
            pairs = [
                hold_on(self.g, self.reach, axis, a, maker)
                for axis, a in zip(self.tables.axes, self.tables.mesh_axes)
            ]
            move = self.prices.costs.move
            found = tuple([(move if pinned else 1, stays) for pinned, stays in pairs])
            self._stays[origin] = found
        return found


def _settled(producer: States, j: int, consumer: States, operands: Sequence[int]) -> bool:
    """Whether a consumer with one state takes a value as its maker, with one state, gives it."""
    for mine, one in zip(producer.items[0], consumer.items[0]):
        label, needs = mine.gives[j], one.needs
        for i in operands:
            if needs[i] != label:
                return False
    return True


__all__ = ["JointBuilder"]
