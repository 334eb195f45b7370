# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Adds the costs of passing values to consumers: tables between the nodes of a problem."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.core.propagation.graph.graph import ALONE, Uses

from .alternatives import Alternatives
from .assembly import Assembly, hold_on

Consumer = tuple[Alternatives, int, tuple[int, ...]]
"""Strategies, the variable that picks a strategy (-1: a single one), and operand numbers."""


class Edges:
    """Adds the tables between producers and consumers, once all nodes are there.

    Parameters
    ----------
    problem : Assembly
    """

    def __init__(self, problem: Assembly) -> None:
        self.problem = problem

    def run(self) -> None:
        """Add the cost of passing each value to its consumers.

        A value that all of them take in the only form that it is given in costs nothing.
        """
        problem = self.problem
        g, m, prices, given = problem.g, problem.model, problem.prices, problem.given
        ends, spliced, n = m.ends, m.spliced, problem.axis.size
        edge, put_edge, once = prices.edge, m.put_edge, g.repeat == 1 and not g.repeats
        factors, constant = m.factors, 0
        for v, k, j, handed, uses, kc, reads in g.links(problem.mesh):
            if kc < 0:
                consumers = self._consumers(uses, given[v])
                if not consumers:
                    continue
            elif kc in spliced:
                consumer, other = spliced[kc].params[reads[0]]
                if other < 0 and consumer.needs[0][0] == given[v]:
                    continue
                reads = ALONE
            else:
                consumer, other = ends[kc]
                if other < 0:
                    needs, label = consumer.needs[0], given[v]
                    if all([needs[i] == label for i in reads]):
                        continue
            if k in spliced:
                producer, variable = spliced[k].rets[j]
                j = 0
            else:
                producer, variable = ends[k]
            size, held = self._weight(v, k) if handed else (problem.bytes[v], False)
            if not once:
                size *= g.times(v)
            if kc < 0:
                self._shared(consumers, producer, variable, j, size, held)
                continue
            table = edge(producer, j, consumer, reads, size, n, held)
            if 0 <= variable < other and (variable, other) not in factors:  # as most tables
                factors[variable, other], low = table
                constant += low
            else:
                put_edge(prices, table, variable, other)
        m.constant += constant

    def _weight(self, v: int, k: int) -> tuple[int, bool]:
        """Return the weight of moving a value, result of node k, and whether it stays in place."""
        problem = self.problem
        pinned, held = hold_on(problem.g, problem.reach, problem.axis, problem.a, k)
        return problem.bytes[v] * (problem.prices.costs.move if pinned else 1), held

    def _consumers(self, uses: Uses, label: int | None) -> list[Consumer]:
        """Return the consumers of a value, none where all take it with the label it is given."""
        ends, spliced = self.problem.model.ends, self.problem.model.spliced
        consumers, is_open = list[Consumer](), False
        for kc, positions in uses:
            if kc in spliced:
                for i in positions:
                    alternatives, variable = spliced[kc].params[i]
                    consumers.append((alternatives, variable, ALONE))
                    is_open = is_open or variable >= 0 or alternatives.needs[0][0] != label
                continue
            alternatives, variable = ends[kc]
            consumers.append((alternatives, variable, positions))
            if not is_open:
                needs = alternatives.needs[0]
                is_open = variable >= 0 or any([needs[i] != label for i in positions])
        return consumers if is_open else []

    def _shared(
        self,
        consumers: Sequence[Consumer],
        producer: Alternatives,
        variable: int,
        j: int,
        size: int,
        held: bool,
    ) -> None:
        """Add the cost of passing a value, result j of its producer, to several consumers."""
        problem, m = self.problem, self.problem.model
        ends = tuple([(alternatives, reads) for alternatives, _, reads in consumers])
        prices, n = problem.prices, problem.axis.size
        count, first, rest = prices.share(producer, j, ends, size, n, held)
        shared = -1
        if count > 1:
            shared = len(m.domains)
            m.domains.append(count)
        m.put_edge(prices, first, variable, shared)
        for (_, other, _), table in zip(consumers, rest):
            m.put_edge(prices, table, other, shared)
