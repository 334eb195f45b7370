# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What it costs to hand values to their consumers: the tables between the nodes of a problem."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import ALONE
from .alternatives import Alternatives
from .problem import HANDED, Assembly, hold_on


class Edges:
    """Adds the tables between producers and consumers, once all nodes are there.

    Parameters
    ----------
    problem : Assembly
    """

    def __init__(self, problem: Assembly) -> None:
        self.problem = problem

    def open_values(self) -> list[int]:
        """Values that some consumer may want in another form than they are given in."""
        problem, found = self.problem, set[int]()
        g, spliced, given = problem.g, problem.model.spliced, problem.given
        first, consumers = len(g.params), problem.model.consumers  # parameters consume nothing
        for k, (node, ends) in enumerate(zip(g.nodes[first:], consumers[first:]), first):
            if not ends:
                continue
            if k in spliced:
                for v, (consumer, variable) in zip(node.operands, ends):
                    if variable >= 0 or consumer.needs[0][0] != given[v]:
                        found.add(v)
                continue
            consumer, variable = ends[0]
            if variable >= 0:
                found.update(node.operands)
                continue
            for v, want in zip(node.operands, consumer.needs[0]):
                if want != given[v]:
                    found.add(v)
        return [v for v in sorted(found) if v >= 0 and g.values[v].mesh == problem.mesh]

    def run(self) -> None:
        """Add what it costs to hand each value to its consumers."""
        problem = self.problem
        g, m, prices = problem.g, problem.model, problem.prices
        spliced, n, move = m.spliced, problem.axis.size, prices.costs.move
        edge, put_edge, once = prices.edge, problem.put_edge, g.repeat == 1 and not g.repeats
        factors, constant = m.factors, 0
        for v in self.open_values():
            k, j = g.producer[v]
            producer, variable = m.producers[k][j]
            if k in spliced:
                j = 0
            size, held = problem.bytes[v], False
            if g.nodes[g.origin[k]].kind in HANDED:
                pinned, held = hold_on(g, problem.reach, problem.axis, problem.a, k)
                size *= move if pinned else 1
            size *= 1 if once else g.times(v)
            uses = g.uses[v]
            kc, positions = uses[0]
            if len(uses) > 1 or (len(positions) > 1 and kc in spliced):
                self._shared(uses, producer, variable, j, size, held)
                continue
            consumer, other = m.consumers[kc][positions[0]]  # as most values
            reads = ALONE if kc in spliced else positions
            table = edge(producer, j, consumer, reads, size, n, held)
            if 0 <= variable < other and (variable, other) not in factors:  # as most tables
                factors[variable, other], low = table
                constant += low
            else:
                put_edge(table, variable, other)
        m.constant += constant

    def _shared(
        self,
        uses: Sequence[tuple[int, tuple[int, ...]]],
        producer: Alternatives,
        variable: int,
        j: int,
        size: int,
        held: bool,
    ) -> None:
        """Add what it costs to hand a value, result j of its producer, to several consumers."""
        problem, m = self.problem, self.problem.model
        consumers: list[tuple[Alternatives, int, tuple[int, ...]]] = []
        for kc, positions in uses:
            if kc in m.spliced:
                consumers += [(*m.consumers[kc][i], ALONE) for i in positions]
            else:
                consumers.append((*m.consumers[kc][positions[0]], positions))
        ends = tuple([(t, reads) for t, _, reads in consumers])
        prices, n = problem.prices, problem.axis.size
        count, first, rest = prices.share(producer, j, ends, size, n, held)
        shared = -1
        if count > 1:
            shared = len(m.domains)
            m.domains.append(count)
        problem.put_edge(first, variable, shared)
        for (_, other, _), table in zip(consumers, rest):
            problem.put_edge(table, other, shared)
