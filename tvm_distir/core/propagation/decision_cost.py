# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes the cost of a decided instance over all axes together, calls included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm_distir.core.propagation.solve.tables import CostTables
from tvm_distir.support import memoized

from .decision import Instance
from .reach import ReachableAxes, hold_on

Sizes = Callable[[Instance, int], list[int]]


@dataclass(frozen=True)
class DecisionCost:
    """Cost in the units of :class:`.Costs`: work inside ops, conversions between them."""

    work: int = 0
    conversions: int = 0

    @property
    def total(self) -> int:
        """Return the sum of both parts."""
        return self.work + self.conversions

    def __add__(self, other: DecisionCost) -> DecisionCost:
        return DecisionCost(self.work + other.work, self.conversions + other.conversions)


class Evaluator:
    """Evaluates the cost of instances, each once and multiplied by its calls.

    Unlike the solution along a single axis, every size results from all axes together, so that
    different decisions can be compared. Axes that are not decided yet cost nothing.
    """

    def __init__(
        self, cost_tables: CostTables, reach: Mapping[str, ReachableAxes], sizes: Sizes
    ) -> None:
        self.cost_tables, self.reach, self.sizes = cost_tables, reach, sizes

    @memoized
    def cost(self, inst: Instance) -> DecisionCost:
        """Return the cost of an execution of an instance."""
        local = DecisionCost(inst.graph.repeat * self._work(inst), self._conversions(inst))
        return sum((self.cost(kid) for kid in inst.kids.values()), local)

    def _work(self, inst: Instance) -> int:
        total = 0
        for k, node in enumerate(inst.graph.nodes):
            if node.kind != "op" or node.rule is None:
                continue
            sides = {
                a: (axis.size, inst.choice[a][k])
                for a, axis in enumerate(self.cost_tables.axes)
                if axis.mesh == node.mesh and a in inst.choice
            }
            work = sent = 0
            for a, (size, strategy) in sides.items():
                others = tuple(side for b, side in sides.items() if b != a)
                tables = self.cost_tables.along(a)
                work, sent_here = tables.parts(node.rule, strategy, size, others)
                sent += sent_here
            total += self.cost_tables.costs.scaled(work + sent)
        return total

    def _conversions(self, inst: Instance) -> int:
        g, total = inst.graph, 0
        reach = self.reach[g.key]
        for v, uses in enumerate(g.uses):
            if not uses:
                continue
            maker, result = g.producer[v]
            for a, axis in enumerate(self.cost_tables.axes):
                if axis.mesh != g.values[v].mesh or a not in inst.choice:
                    continue
                choice = inst.choice[a]
                have = choice[maker].gives[result]
                needs = frozenset(choice[k].needs[i] for k, positions in uses for i in positions)
                if needs == {have}:
                    continue
                pinned, stationary = hold_on(g, reach, axis, a, maker)
                size = self.sizes(inst, a)[v] * (self.cost_tables.costs.move if pinned else 1)
                size *= g.times(v)
                conversions = self.cost_tables.conversions.along(a)
                total += conversions.supply(have, needs, size, axis.size, stationary)[0]
        return total
