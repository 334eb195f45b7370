# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Adds the costs of passing values to their consumers, along all axes of a mesh."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.core.propagation.graph.graph import ALONE, Graph, Uses
from tvm_distir.core.propagation.reach import ReachableAxes
from tvm_distir.core.propagation.solve.assembly import hold_on

from .states import JointProblem, JointStrategies
from .tables import Held, JointTables


class JointEdges:
    """Adds the tables between producers and consumers, once all nodes are there.

    Parameters
    ----------
    tables : JointTables
        Of the mesh.
    g : Graph
    reach : ReachableAxes
        Of the graph.
    model : JointProblem
        With all nodes.
    """

    def __init__(
        self, tables: JointTables, g: Graph, reach: ReachableAxes, model: JointProblem
    ) -> None:
        self.tables, self.prices, self.mesh = tables, tables.prices, tables.axes[0].mesh
        self.g, self.reach, self.model = g, reach, model
        self._loose: Held = ((1, False),) * len(tables.axes)
        self._stays: dict[int, Held] = {}

    def run(self) -> None:
        """Add the cost of passing each value to its consumers."""
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
                m.put_edge(prices, table, variable, other)

    def _shared(
        self,
        readers: Sequence[tuple[JointStrategies, int, tuple[int, ...]]],
        producer: JointStrategies,
        variable: int,
        j: int,
        size_bytes: int,
        held: Held,
    ) -> None:
        """Add the cost of passing a value, result j of its producer, to several consumers."""
        if variable < 0 and all(
            [other < 0 and _settled(producer, j, states, o) for states, other, o in readers]
        ):
            return
        m, prices = self.model, self.prices
        ends = tuple([(states, operands) for states, _, operands in readers])
        for count, first, rest in self.tables.share(producer, j, ends, size_bytes, held):
            shared = -1
            if count > 1:
                shared = len(m.domains)
                m.domains.append(count)
            m.put_edge(prices, first, variable, shared)
            for (_, other, _), table in zip(readers, rest):
                m.put_edge(prices, table, other, shared)

    def _readers(self, uses: Uses) -> list[tuple[JointStrategies, int, tuple[int, ...]]]:
        """Return the consumers of a value: states, their variable, operand numbers."""
        ends, spliced = self.model.ends, self.model.spliced
        readers: list[tuple[JointStrategies, int, tuple[int, ...]]] = []
        for k, positions in uses:
            if k in spliced:
                params = spliced[k].params
                readers += [(*params[i], ALONE) for i in positions]
            else:
                readers.append((*ends[k], positions))
        return readers

    def _held(self, maker: int) -> Held:
        """Return per axis the weight of a moved byte, and whether a node's values stay in place."""
        origin = self.g.origin[maker]
        held = self._stays.get(origin)
        if held is None:
            pairs = [
                hold_on(self.g, self.reach, axis, a, maker)
                for axis, a in zip(self.tables.axes, self.tables.mesh_axes)
            ]
            move = self.prices.costs.move
            held = tuple([(move if pinned else 1, stays) for pinned, stays in pairs])
            self._stays[origin] = held
        return held


def _settled(
    producer: JointStrategies, j: int, consumer: JointStrategies, operands: Sequence[int]
) -> bool:
    """Return whether a consumer with a single state takes a value as its producer gives it."""
    for mine, reader in zip(producer.items[0], consumer.items[0]):
        label, needs = mine.gives[j], reader.needs
        for i in operands:
            if needs[i] != label:
                return False
    return True


__all__ = ["JointEdges"]
