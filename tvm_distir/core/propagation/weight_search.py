# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Propagates a module repeatedly along an axis, from placements of weights instead of a plan.

Common parts are cached: the classes of dims that rules tie, and the reachable axes of given labels.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from tvm.ir import IRModule

from tvm_distir.core.ir.placement import R
from tvm_distir.core.propagation.graph.graph import Axis, Graph, divisible, has_size
from tvm_distir.core.propagation.solve.cost import Conversions, Costs
from tvm_distir.core.propagation.solve.exact import WarmStarts
from tvm_distir.core.propagation.solve.strategies import StrategyTable
from tvm_distir.core.propagation.solve.tables import CostTables

from .assignment import ShardingAssignment
from .decision import Decision
from .placed_module import PlacedModule
from .reach import Given, ReachabilityWalk, ReachableAxes
from .unify import DimClasses, DimUnifier

WeightLabels = dict[str, dict[int, int]]
"""The label of each weight, per public function and flat number among the parameters."""

Asked = Mapping[str, Mapping[int, int | None]]
"""The label of each weight, or None for any, per public function."""

Stored = Mapping[str, Collection[int]]
"""The weights that are stored sharded, and gathered where they are used, per public function."""

NOTHING: Stored = {}


class WeightSearch:
    """Propagation along an axis whose seeds are weights.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1.
    axis : Axis
    settling : Costs
        Costs asked for often: what is made with them is kept.
    """

    def __init__(self, mod: IRModule, axis: Axis, settling: Costs) -> None:
        self.module = PlacedModule.of(mod, [axis])
        self._unified = DimUnifier(self.module).run()
        self._costs = _CostTables(self.module, settling)
        self._reached: dict[Hashable, dict[str, ReachableAxes]] = {}
        self._starts = WarmStarts()

    def reach_of(
        self, labels: Asked, stored: Stored = NOTHING, parts: int = 0
    ) -> dict[str, ReachableAxes]:
        """Return the reachable axes from weights with these labels."""
        key = _key(labels, stored, parts)
        if key not in self._reached:
            requests, stored_params = {}, {}
            for name, params_labels in labels.items():
                entry = self.module.entries[name]
                params = self.module.graphs[entry].params
                requests[entry] = {params[i]: x for i, x in params_labels.items()}
                stored_params[entry] = {params[i] for i in stored.get(name, ())}
            seeded = _seeded(self.module, self._unified, requests, parts)
            fixed = _given(self.module, requests, stored_params)
            self._reached[key] = ReachabilityWalk(self.module, seeded, fixed).run()
        return self._reached[key]

    def decide(
        self, labels: Asked, costs: Costs, stored: Stored = NOTHING, parts: int = 0
    ) -> Decision:
        """Solve the module anew.

        Parameters
        ----------
        labels : mapping
            The labels of the weights.
        costs : Costs
        stored : mapping of str to collection of int
            Weights that may be communicated.
        parts : int
            Where it is not 0, values that follow from the other parameters may be sharded as well,
            if it divides a dim of the parameter.
        """
        reach, cost_tables = self.reach_of(labels, stored, parts), self._costs.at(costs)
        decision = ShardingAssignment(self.module, reach, cost_tables, starts=self._starts).run()
        self._costs.release(cost_tables)
        return decision


class _CostTables:
    """Tables at requested costs; parts that do not depend on the costs are cached."""

    def __init__(self, module: PlacedModule, settling: Costs) -> None:
        self._module, self._settling = module, settling
        self._strategies: dict[tuple[int, ...], StrategyTable] = {}
        self._conversions: dict[Costs, Conversions] = {}
        self._kept = self._made(settling)

    def at(self, costs: Costs) -> CostTables:
        """Return the tables at some costs."""
        return self._kept if costs == self._settling else self._made(costs)

    def release(self, cost_tables: CostTables) -> None:
        """Free the objects made with tables that are not cached: they refer to each other."""
        if cost_tables is not self._kept:
            cost_tables.along_axes.clear()

    def _made(self, costs: Costs) -> CostTables:
        cost_tables = CostTables(costs.for_ops(*self._module.largest), self._module.axes)
        cost_tables.strategies = self._strategies
        sending = replace(cost_tables.costs, memory=0, flop=0, hold=0)
        cost_tables.conversions = self._conversions.setdefault(sending, cost_tables.conversions)
        return cost_tables


def _seeded(module: PlacedModule, unified: DimClasses, requests: Asked, parts: int) -> DimClasses:
    """Return the classes of a module, with the requested weights as seeds beside annotations."""
    seeds: dict[str, dict[int, set[int]]] = {}
    for key in module.order:
        g, root = module.graphs[key], unified.root[key]
        graph_seeds = seeds[key] = {
            dim_class: set(axes) for dim_class, axes in unified.seeds[key].items()
        }
        for k in g.calls:
            inner = seeds[g.nodes[k].callee]
            for x, inside in unified.across[key, k] if inner else ():
                axes = inner.get(inside)
                if axes:
                    graph_seeds.setdefault(root[x], set()).update(axes)
        if key in requests:
            for x in _asked_dims(g, requests[key], parts):
                graph_seeds.setdefault(root[x], set()).add(0)
    return DimClasses(unified.root, seeds, unified.across)


def _asked_dims(g: Graph, requests: Mapping[int, int | None], parts: int) -> list[int]:
    """Return parameter dims that may be sharded: any dim (None), or the chosen dim of a weight.

    With ``parts`` the values that follow from other parameters may be sharded as well, where
    that divides a dim of the parameter.
    """
    result: list[int] = []
    for k in g.params:
        v = g.nodes[k].results[0]
        shape = g.values[v].shape
        if k not in requests:
            sized = [d for d, n in enumerate(shape) if has_size(n)]
            dims = [d for d in sized if parts and divisible(shape[d], parts)]
        else:
            label = requests[k]
            dims = [*range(len(shape))] if label is None else [label] * (label >= 0)
        result += [g.offset[v] + d for d in dims]
    return result


def _given(module: PlacedModule, requests: Asked, stored: Stored) -> Given:
    """Return parameter labels (R except for weights), and which parameters are held."""
    return {
        key: {
            k: (weights.get(k, R), k in weights and k not in stored.get(key, ()))
            for k in module.graphs[key].params
        }
        for key, weights in requests.items()
    }


def _key(labels: Asked, stored: Stored, parts: int) -> Hashable:
    return (
        parts,
        tuple((name, tuple(weights.items())) for name, weights in labels.items()),
        tuple((name, tuple(sorted(weights))) for name, weights in stored.items()),
    )
