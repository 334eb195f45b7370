# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What it costs to hand values to their consumers: the tables between the nodes of a problem."""

from __future__ import annotations

from .alternatives import Alternatives
from .problem import Assembly, hold_on


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
        for k, (node, ends) in enumerate(zip(g.nodes, problem.model.consumers)):
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

    def between(self, v: int) -> None:
        """What it costs to hand value v to its consumers."""
        problem = self.problem
        g, m, prices = problem.g, problem.model, problem.prices
        uses, (k, j) = g.uses[v], g.producer[v]
        producer, variable = m.producers[k][j]
        if k in m.spliced:
            j = 0
        size, n, held = problem.bytes[v], problem.axis.size, False
        if g.nodes[g.origin[k]].rule is None:  # what an op makes is neither
            pinned, held = hold_on(g, problem.reach, problem.axis, problem.a, k)
            size *= prices.costs.move if pinned else 1
        size *= g.times(v)
        if len(uses) == 1 and uses[0][0] not in m.spliced:  # as most values
            kc, positions = uses[0]
            consumer, other = m.consumers[kc][positions[0]]
            table = prices.edge(producer, j, consumer, positions, size, n, held)
            problem.put_edge(table, variable, other)
            return
        consumers: list[tuple[Alternatives, int, tuple[int, ...]]] = []
        for kc, positions in uses:
            if kc in m.spliced:
                consumers += [(*m.consumers[kc][i], (0,)) for i in positions]
            else:
                consumers.append((*m.consumers[kc][positions[0]], positions))
        if len(consumers) == 1:
            consumer, other, ops = consumers[0]
            table = prices.edge(producer, j, consumer, ops, size, n, held)
            problem.put_edge(table, variable, other)
            return
        ends = tuple([(t, ops) for t, _, ops in consumers])
        count, first, rest = prices.share(producer, j, ends, size, n, held)
        shared = -1
        if count > 1:
            shared = len(m.domains)
            m.domains.append(count)
        problem.put_edge(first, variable, shared)
        for (_, other, _), table in zip(consumers, rest):
            problem.put_edge(table, other, shared)
