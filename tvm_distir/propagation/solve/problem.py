# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The labelling problem of one function along one axis, as variables and cost tables.

A call with several alternatives is a variable, its work a table over it. A value with one
consumer gives a table over producer and consumer: the cheapest conversion. A value with several
consumers gets a variable of its own, the set of forms it is held in, so that one collective
serves all of them. A call of a private function splices that function's summary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...ir import P, R
from ...native import INFINITE, Elimination, Scope
from ...ops import Rule
from ..decision import Instance, Signature
from ..graph import Axis, Graph, Node
from ..reach import Reach
from .alternatives import Alternative, Alternatives, fits
from .tables import TableSource

End = tuple[Alternatives, int]
"""Alternatives of an operand or result and the variable that picks one (-1: only one)."""


@dataclass
class AxisProblem:
    """Variables (``domains``), tables (``factors``), constant, and the ends of every node."""

    domains: list[int] = field(default_factory=list)
    factors: dict[Scope, int] = field(default_factory=dict)
    constant: int = 0
    feasible: bool = True
    producers: list[tuple[End, ...]] = field(default_factory=list)
    consumers: list[tuple[End, ...]] = field(default_factory=list)
    spliced: dict[int, range] = field(default_factory=dict)


@dataclass
class Summary:
    """A function along an axis with its inner variables minimised out."""

    model: AxisProblem
    done: Elimination
    domains: list[int]
    factors: list[tuple[Scope, int]]
    constant: int
    feasible: bool
    params: list[End]
    rets: list[End]


def hold_on(g: Graph, reach: Reach, axis: Axis, a: int, k: int) -> tuple[bool, bool]:
    """(pinned by the user, stationary) along axis ``a``, for the value that node k produces.

    A layout op hands on what its operand is: a transposed weight is the weight.
    """
    k = g.origin[k]
    node = g.nodes[k]
    if node.kind == "op":
        return False, False
    if node.kind == "param":
        pinned = node.pin_on(axis) or reach.fixed[a].get(k) is not None
        held = reach.held[a].get(k, False)
        return pinned, held or (g.public and pinned and node.stationary)
    if node.kind == "pin":
        pinned = node.pin_on(axis)
        return pinned, pinned and node.stationary
    return False, False


class Builder:
    """Builds the model of one instance along one axis."""

    def __init__(
        self,
        prices: TableSource,
        inst: Instance,
        a: int,
        reach: Reach,
        sizes: tuple[list[int], dict[int, dict[int, int]]],
        summary_of: Callable[[int], Summary],
        forced: Signature | None = None,
    ) -> None:
        self.prices, self.inst, self.g, self.a, self.reach = prices, inst, inst.graph, a, reach
        self.axis = prices.axes[a]
        self.mesh = self.axis.mesh
        self.bytes, self.cut = sizes
        self.summary_of = summary_of
        self.forced = None if forced is None else forced[a]
        self.model = AxisProblem()
        siblings = [
            b for b, axis in enumerate(prices.axes) if axis.mesh == self.axis.mesh and b != a
        ]
        self.decided = [(prices.axes[b].size, inst.choice[b]) for b in siblings if b in inst.choice]
        self.known = tuple([b in inst.choice for b in siblings])
        self.undecided = [
            (prices.axes[b].size, reach.mask[b]) for b in siblings if b not in inst.choice
        ]

    def run(self) -> AxisProblem:
        """Nodes first, parameters before all others, then the edges between them."""
        build = {
            "op": self._op,
            "ret": self._ret,
            "call": self._call,
            "pin": self._pin,
            "move": self._move,
        }
        self._params()
        for k in range(len(self.g.params), len(self.g.nodes)):
            node = self.g.nodes[k]
            build[node.kind](k, node)
        for v in self._open_values():
            self._edges(v)
        return self.model

    def _put(self, scope: Scope, table: tuple[int, int]) -> None:
        number, low = table
        m = self.model
        m.constant += low
        if scope:
            other = m.factors.get(scope)
            if other is not None:
                number, low = self.prices.add(other, number)
                m.constant += low
            m.factors[scope] = number
        elif self.prices.array(number) >= INFINITE:
            m.feasible = False

    def _put_edge(self, table: tuple[int, int], first: int, second: int) -> None:
        """A table laid out (first, second), put over sorted variables."""
        if 0 <= first < second:
            self._put((first, second), table)
        elif first < 0:
            self._put((second,) if second >= 0 else (), table)
        elif second < 0:
            self._put((first,), table)
        else:
            self._put_turned(table, first, second)

    def _put_turned(self, table: tuple[int, int], first: int, second: int) -> None:
        """As above where the second variable is the lower one, or the first itself."""
        number, low = table
        if first > second:
            number, more = self.prices.flipped(number)
            self._put((second, first), (number, low + more))
            return
        number, more = self.prices.diagonal(number)
        self._put((first,), (number, low + more))

    def _add(self, alternatives: Alternatives, node: Node) -> int:
        m, variable, count = self.model, -1, len(alternatives.items)
        if count > 1:
            variable = len(m.domains)
            m.domains.append(count)
        end = (alternatives, variable)
        m.producers.append((end,) * len(node.results))
        m.consumers.append((end,) * len(node.operands))
        return variable

    def _off_mesh(self, node: Node) -> bool:
        return node.mesh != self.mesh

    def _trivial(self, node: Node) -> None:
        self._add(self.prices.forms.whole(len(node.operands), len(node.results)), node)

    def _op(self, k: int, node: Node) -> None:
        rule, partial, mask = node.rule, 0, self.reach.mask[self.a][k]
        if rule is None or self._off_mesh(node):
            self._trivial(node)
            return
        pending = self.reach.partial[self.a]
        for i in rule.carrying:
            v = node.operands[i]
            if v >= 0 and pending[v]:
                partial |= 1 << i
        if not mask and not partial:
            self._trivial(node)
            return
        decided = tuple([choice[k] for _, choice in self.decided])
        undecided = tuple([n for n, masks in self.undecided if masks[k]])
        key = (self.a, self.known, id(rule), mask, partial, decided, undecided)
        found = self.prices.ops.get(key)
        if found is None:
            found = self.prices.ops[key] = self._op_tables(rule, mask, partial, decided, undecided)
        alternatives, table = found
        variable = self._add(alternatives, node)
        if table is not None:
            self._put((variable,), table)

    def _op_tables(
        self,
        rule: Rule,
        mask: int,
        partial: int,
        decided: Sequence[Alternative],
        undecided: Sequence[int],
    ) -> tuple[Alternatives, tuple[int, int] | None]:
        """Alternatives of an op and, where there are several, the table of its work."""
        sizes = [n for n, _ in self.decided]
        taken: dict[int, int] = {}
        for n, chosen in zip(sizes, decided):
            if mask and chosen.factor is not None:
                taken[chosen.factor] = taken.get(chosen.factor, 1) * n
        alternatives = self.prices.forms.of_rule(rule, self.axis.size, mask, partial, taken)
        if len(alternatives) == 1:
            return alternatives, None
        others = (
            *[(n, x.needs + x.gives, x.factor is not None) for n, x in zip(sizes, decided)],
            *[(n, None, True) for n in undecided],
        )
        return alternatives, self.prices.work(rule, alternatives, self.axis.size, others)

    def _pin(self, k: int, node: Node) -> None:
        if self._off_mesh(node):
            self._trivial(node)
            return
        label = node.pin[self.axis.index] if node.pin is not None else None
        v = node.results[0]
        labels = [label] if label is not None else self._labels(v, self._may_be_partial(v))
        self._add(self.prices.forms.intern([Alternative((x,), (x,), None) for x in labels]), node)

    def _move(self, k: int, node: Node) -> None:
        """Arrival is free of form: each byte a device keeps crosses once."""
        source, target = node.operands[0], node.results[0]
        if self.g.values[source].mesh == self.mesh:
            items = [Alternative((x,), (R,), None) for x in self._labels(source, False)]
            self._add(self.prices.forms.intern(items), node)
        elif self.g.values[target].mesh == self.mesh:
            labels = self._labels(target, False)
            alternatives = self.prices.forms.intern([Alternative((R,), (x,), None) for x in labels])
            variable = self._add(alternatives, node)
            if variable >= 0:
                n, b, costs = self.axis.size, self.bytes[target], self.prices.costs
                rows = [costs.scaled(costs.wire * (b // n if x >= 0 else b)) for x in labels]
                self._put((variable,), self.prices.table([rows]))
        else:
            self._trivial(node)

    def _may_be_partial(self, v: int) -> bool:
        return bool(self.reach.partial[self.a][v])

    def _labels(self, v: int, partial: bool) -> list[int]:
        """Forms a boundary value may have: dims the axis reaches, whole, partial."""
        active, off = self.reach.active[self.a], self.g.offset[v]
        cut = self.cut.get(v, {})
        value = self.g.values[v]
        found = [
            d
            for d, n in enumerate(value.shape)
            if active[off + d] and fits(n, self.axis.size, cut.get(d, 1), True)
        ]
        return [*found, R] + [P] * partial

    def _params(self) -> None:
        """Most have one label only: they are many, and cost a few lookups each."""
        g, m, mesh, index = self.g, self.model, self.mesh, self.axis.index
        forced = None if self.forced is None else self.forced[0]
        fixed = self.reach.fixed[self.a]
        given: dict[int, tuple[End, ...]] = {}
        for i, k in enumerate(g.params):
            node = g.nodes[k]
            label: int | None = R
            if g.values[node.results[0]].mesh == mesh:
                if forced is not None:
                    label = forced[i]
                elif g.public and node.pin is not None:
                    label = node.pin[index]
                else:
                    label = fixed.get(k)
            if label is None:
                self._free_param(node)
                continue
            end = given.get(label)
            if end is None:
                end = given[label] = ((self.prices.forms.ends([label], needs=False), -1),)
            m.producers.append(end)
            m.consumers.append(())

    def _free_param(self, node: Node) -> None:
        v = node.results[0]
        labels = self._labels(v, self._may_be_partial(v) and not self.g.public)
        alternatives = self.prices.forms.ends(labels, needs=False)
        variable = self._add(alternatives, node)
        if variable >= 0 and self.g.public:
            costs, n, b = self.prices.costs, self.axis.size, self.bytes[v]
            rows = [costs.scaled(costs.hold * b // (n if x >= 0 else 1)) for x in labels]
            self._put((variable,), self.prices.table([rows]))

    def _ret(self, k: int, node: Node) -> None:
        v = node.operands[0]
        if v < 0 or self.g.values[v].mesh != self.mesh:
            labels = [R]
        elif self.forced is not None:
            labels = [self.forced[1][k - self.g.rets[0]]]
        else:
            labels = self._labels(v, self._may_be_partial(v) and not self.g.public)
        self._add(self.prices.forms.ends(labels, needs=True), node)

    def _call(self, k: int, node: Node) -> None:
        m, summary = self.model, self.summary_of(k)
        base = range(len(m.domains), len(m.domains) + len(summary.domains))
        m.domains += summary.domains
        for scope, table in summary.factors:
            self._put(tuple([base[u] for u in scope]), (table, 0))
        m.constant += summary.constant
        m.feasible = m.feasible and summary.feasible
        m.spliced[k] = base
        for ends, outside in ((m.producers, summary.rets), (m.consumers, summary.params)):
            ends.append(tuple([(alts, base[u]) if u >= 0 else (alts, u) for alts, u in outside]))

    def _open_values(self) -> list[int]:
        """Values that some consumer may want in another form than they are given in."""
        g, producers, spliced = self.g, self.model.producers, self.model.spliced
        found = []
        for v, (value, uses, (k, j)) in enumerate(zip(g.values, g.uses, g.producer)):
            if not uses or value.mesh != self.mesh:
                continue
            producer, variable = producers[k][j]
            if variable >= 0 or not self._as_given(
                producer.gives[0][0 if k in spliced else j], uses
            ):
                found.append(v)
        return found

    def _as_given(self, have: int, uses: Sequence[tuple[int, tuple[int, ...]]]) -> bool:
        """Whether each consumer can only want the one form that a value is given in."""
        consumers, spliced = self.model.consumers, self.model.spliced
        for k, positions in uses:
            for i in positions:
                consumer, variable = consumers[k][i]
                if variable >= 0 or consumer.needs[0][0 if k in spliced else i] != have:
                    return False
        return True

    def _edges(self, v: int) -> None:
        """What it costs to hand value v to its consumers."""
        g, m, uses = self.g, self.model, self.g.uses[v]
        k, j = g.producer[v]
        producer, variable = m.producers[k][j]
        if k in m.spliced:
            j = 0
        consumers: list[tuple[Alternatives, int, tuple[int, ...]]] = []
        for kc, positions in uses:
            if kc in m.spliced:
                consumers += [(*m.consumers[kc][i], (0,)) for i in positions]
            else:
                consumers.append((*m.consumers[kc][positions[0]], positions))
        pinned, held = hold_on(g, self.reach, self.axis, self.a, k)
        size = self.bytes[v] * (self.prices.costs.move if pinned else 1)
        n = self.axis.size
        if len(consumers) == 1:
            consumer, other, ops = consumers[0]
            table = self.prices.edge(producer, j, consumer, ops, size, n, held)
            self._put_edge(table, variable, other)
            return
        ends = tuple([(t, ops) for t, _, ops in consumers])
        count, first, rest = self.prices.share(producer, j, ends, size, n, held)
        shared = -1
        if count > 1:
            shared = len(m.domains)
            m.domains.append(count)
        self._put_edge(first, variable, shared)
        for (_, other, _), table in zip(consumers, rest):
            self._put_edge(table, other, shared)
