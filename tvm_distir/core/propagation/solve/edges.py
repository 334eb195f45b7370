# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Adds the tables between producers and consumers to a problem."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.core.propagation.graph.graph import ALONE, Graph, Uses
from tvm_distir.core.propagation.reach import ReachableAxes, hold_on
from tvm_distir.support import memoized

from .byte_costs import ByteCosts, HeldLabels
from .problem import LabellingProblem
from .strategies import Strategies

Consumer = tuple[Strategies, int, tuple[int, ...]]
"""Strategies, the variable that picks among them (-1: a single strategy), and operand numbers."""

Placed = tuple[int | None, ...] | None
"""The only placement in which a value is given; None where there are several."""


class EdgeTables:
    """Adds the cost of passing each value to its consumers, once all nodes are there.

    Parameters
    ----------
    costs : ByteCosts
    g : Graph
    reach : ReachableAxes
        The reachable axes of the graph.
    model : LabellingProblem
        The problem, with all nodes.
    sizes : sequence of int
        Bytes of each value, local to the other axes of the mesh.
    placed : sequence of Placed
        The placement in which each value is produced.
    """

    def __init__(
        self,
        costs: ByteCosts,
        g: Graph,
        reach: ReachableAxes,
        model: LabellingProblem,
        sizes: Sequence[int],
        placed: Sequence[Placed],
    ) -> None:
        self.costs, self.cost_tables, self.g, self.reach = costs, costs.cost_tables, g, reach
        self.model, self.sizes, self.given = model, sizes, placed

    def run(self) -> None:
        """Add the tables.

        A value that all consumers take in the only placement that it is given in costs nothing.
        """
        g, m, produced, sizes = self.g, self.model, self.given, self.sizes
        cost_tables, edge, put_edge = self.cost_tables, self.costs.edge, m.put_edge
        ends, spliced, factors, constant = m.ends, m.spliced, m.factors, 0
        once, loose = g.repeat == 1 and not g.repeats, ((1, False),) * len(self.costs.axes)
        for v, k, j, handed, uses, reader, reads in g.links(self.costs.axes[0].mesh):
            if reader < 0:
                consumers = self._consumers(uses, produced[v])
                if not consumers:
                    continue
            elif reader in spliced:
                consumer, other = spliced[reader].params[reads[0]]
                if other < 0 and consumer.needs[0][0] == produced[v]:
                    continue
                reads = ALONE
            else:
                consumer, other = ends[reader]
                if other < 0:
                    needs, only = consumer.needs[0], produced[v]
                    if all([needs[i] == only for i in reads]):
                        continue
            if k in spliced:
                (producer, variable), j = spliced[k].rets[j], 0
            else:
                producer, variable = ends[k]
            stationary = self._held(g.origin[k]) if handed else loose
            size_bytes = sizes[v] if once else sizes[v] * g.times(v)
            if reader < 0:
                self._shared(consumers, producer, variable, j, size_bytes, stationary)
                continue
            table = edge(producer, j, consumer, reads, size_bytes, stationary)
            if 0 <= variable < other and (variable, other) not in factors:  # as most tables
                factors[variable, other], low = table
                constant += low
            else:
                put_edge(cost_tables, table, variable, other)
        m.constant += constant

    def _consumers(self, uses: Uses, only: Placed) -> list[Consumer]:
        """Return the consumers of a value, none where all take it in the only placement given."""
        ends, spliced = self.model.ends, self.model.spliced
        consumers, is_open = list[Consumer](), False
        for k, positions in uses:
            if k in spliced:
                for i in positions:
                    strategies, variable = spliced[k].params[i]
                    consumers.append((strategies, variable, ALONE))
                    is_open = is_open or variable >= 0 or strategies.needs[0][0] != only
                continue
            strategies, variable = ends[k]
            consumers.append((strategies, variable, positions))
            if not is_open:
                needs = strategies.needs[0]
                is_open = variable >= 0 or any([needs[i] != only for i in positions])
        return consumers if is_open else []

    def _shared(
        self,
        consumers: Sequence[Consumer],
        producer: Strategies,
        variable: int,
        j: int,
        size_bytes: int,
        stationary: HeldLabels,
    ) -> None:
        """Add the cost of passing a value, result j of its producer, to several consumers."""
        m, cost_tables = self.model, self.cost_tables
        readers = tuple([(strategies, reads) for strategies, _, reads in consumers])
        for count, first, rest in self.costs.share(producer, j, readers, size_bytes, stationary):
            shared = -1
            if count > 1:
                shared = len(m.domains)
                m.domains.append(count)
            m.put_edge(cost_tables, first, variable, shared)
            for (_, other, _), table in zip(consumers, rest):
                m.put_edge(cost_tables, table, other, shared)

    @memoized
    def _held(self, maker: int) -> HeldLabels:
        """Return per axis the weight of a moved byte, and whether a node's values stay in place."""
        move, axes = self.cost_tables.costs.move, zip(self.costs.axes, self.costs.numbers)
        pairs = [hold_on(self.g, self.reach, axis, a, maker) for axis, a in axes]
        return tuple([(move if pinned else 1, stays) for pinned, stays in pairs])
