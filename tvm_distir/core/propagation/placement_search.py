# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Searches placements of weights by minimum cost, and reports their cost per device.

Propagation finds the cheapest labels of everything a plan leaves open. Here that is every
weight: each may be sharded on any dim or replicated, and is used as placed. :class:`Costs` weighs
the memory, arithmetic and communication of a device; :class:`PlacementSearch` solves the same
module repeatedly with other weights, and measures the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import ir

from tvm_distir.core.ir.placement import R, ceil_div
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.graph.graph import LAYOUT_OPS, Axis, Graph
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.propagation.solve.strategies import factor_fits, fits
from tvm_distir.support import memoized

from .decision import Decision, each_instance
from .footprint import CostMeter, DeviceCost
from .weight_search import WeightLabels, WeightSearch

SETTLING = Costs()
"""The costs that propagation counts unless it is given others."""


@dataclass(frozen=True)
class PlacementConstraint:
    """A variable that has to be sharded where the weights alone do not lead to that."""

    function: str
    variable: str
    label: int


@dataclass(frozen=True)
class CandidatePlacement:
    """A choice of labels with its cost per device.

    ``pins`` are the values whose labels propagation needs to reproduce the placement, ``stored``
    the dims of the weights that are stored sharded and gathered where they are used.
    """

    labels: WeightLabels
    footprint: DeviceCost
    pins: tuple[PlacementConstraint, ...] = ()
    stored: WeightLabels = field(default_factory=dict)


class PlacementSearch:
    """Search over placements of the weights of a module along a mesh axis.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1.
    axis : str
        Name of the mesh axis, for messages.
    ranks : int
        Devices along it.
    weights : mapping of str to collection of int
        The flat parameters of each public function that are weights. The others are replicated
        along the axis.
    costs : Costs
        The costs that propagation uses later, unless it is given others.

    Raises
    ------
    PropagationError
        DIST0401 an op without a rule; what extraction raises.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        axis: str,
        ranks: int,
        weights: Mapping[str, Collection[int]],
        costs: Costs = SETTLING,
    ) -> None:
        self.ranks, self.costs = ranks, costs
        self._open = {name: dict.fromkeys(sorted(params)) for name, params in weights.items()}
        self._search = WeightSearch(mod, Axis(0, 0, ranks, axis), costs)
        self._meter = CostMeter(ranks)
        self._stored: WeightLabels = {}
        self._tried: dict[Hashable, CandidatePlacement] = {}

    def store(self, dims: WeightLabels) -> None:
        """Set which weights are stored sharded, on which dims, and gathered where they are used.

        The trials that follow move these and no other weights.
        """
        self._stored = dims
        self._tried.clear()

    def best(self, costs: Costs, parts: int = 0) -> CandidatePlacement:
        """Solve with every weight free.

        Parameters
        ----------
        costs : Costs
        parts : int
            Where it is not 0, values that follow from the data inputs may be sharded too, if it
            divides a dim of the input.

        Raises
        ------
        PropagationError
            DIST0410 when the sharding assignment is too wide.
        """
        key = (costs, parts)
        if key not in self._tried:
            requests = {
                name: {**params, **self._stored.get(name, {})}
                for name, params in self._open.items()
            }
            decision = self._search.decide(requests, costs, self._stored, parts)
            labels: WeightLabels = {}
            for name, params in self._open.items():
                inst = decision.entries[name]
                labels[name] = {
                    i: decision.value_layout(inst, inst.graph.param_values[i])[0] for i in params
                }
            self._tried[key] = self._trial(decision, labels, self._pins(decision, labels))
        return self._tried[key]

    def sent(self, cost: DeviceCost) -> int:
        """Return the bytes a device sends, or their cost where links have separate costs."""
        if self.costs == SETTLING:
            return cost.sent_bytes
        return self.costs.sending(cost.sent_bytes, cost.collectives)

    def settled(self, labels: WeightLabels, costs: Costs | None = None) -> CandidatePlacement:
        """Return the propagated decision for these labels: as :meth:`best`, with nothing free."""
        costs = costs or self.costs
        key = (costs, tuple((name, tuple(params.items())) for name, params in labels.items()))
        if key not in self._tried:
            self._tried[key] = self._trial(self._search.decide(labels, costs, self._stored), labels)
        return self._tried[key]

    def _trial(
        self, decision: Decision, labels: WeightLabels, pins: tuple[PlacementConstraint, ...] = ()
    ) -> CandidatePlacement:
        stored_bytes = sum(
            self.weight_bytes(name, i, label)
            for name, params in labels.items()
            for i, label in params.items()
        )
        counts = self._meter.counts(decision.entries[name] for name in labels)
        return CandidatePlacement(labels, DeviceCost(stored_bytes, *counts), pins, self._stored)

    def alone(self) -> DeviceCost:
        """Return the cost on a single device; wire bytes are those of all op results, twice."""
        flops, moved, stored_bytes = 0, 0, 0
        for name in self._open:
            g = self._graph(name)
            stored_bytes += sum(g.values[g.param_values[i]].size_bytes for i in self._open[name])
            for rule, count in self.ops(name):
                flops += count * rule.flops
                moved += count * 2 * sum(rule.out_bytes)
        return DeviceCost(stored_bytes, flops, moved)

    def unsharded_flops(self) -> dict[str, int]:
        """Return the FLOPs of ops that no rule can shard over the axis, by op name."""
        result: dict[str, int] = {}
        for name in self._open:
            for rule, count in self.ops(name):
                if not any(factor_fits(f, self.ranks, 1) for f in rule.factors) and rule.flops:
                    result[rule.op] = result.get(rule.op, 0) + count * rule.flops
        return result

    def ops(self, name: str, count: int = 1) -> list[tuple[Rule, int]]:
        """Return the rules of all ops a function runs, private functions included, with counts."""
        counts = {self._graph(name).key: count}
        for key in reversed(self._search.module.order):
            for k in self._search.module.graphs[key].calls if key in counts else ():
                callee = self._search.module.graphs[key].nodes[k].callee
                counts[callee] = counts.get(callee, 0) + counts[key]
        return [
            (node.rule, times)
            for key, times in counts.items()
            for node in self._search.module.graphs[key].nodes
            if node.rule is not None
        ]

    def weight_bytes(self, name: str, number: int, label: int = R) -> int:
        """Return the bytes a device stores of a weight: the largest shard of an uneven dim."""
        value = self._graph(name).values[self._graph(name).param_values[number]]
        if label < 0:
            return value.size_bytes
        size = value.shape[label]
        if not isinstance(size, int):
            return int(ceil_div(value.size_bytes, self.ranks))
        return int(value.size_bytes // max(size, 1) * ceil_div(size, self.ranks))

    def storage_dim(self, name: str, number: int) -> int | None:
        """Return the dim by which a weight is stored in the fewest bytes per device.

        None where all dims are too small.
        """
        shape = self._graph(name).values[self._graph(name).param_values[number]].shape
        dims = [d for d, size in enumerate(shape) if fits(size, self.ranks, 1, True)]
        return min(dims, key=lambda d: (self.weight_bytes(name, number, d), d), default=None)

    def obstacles(self, name: str, number: int) -> list[str]:
        """Return why a weight can be sharded on none of its dims; nothing when it can.

        Every consumer must accept the dim as it is sharded, through layout ops and calls.
        """
        g, reasons = self._graph(name), list[str]()
        v = g.param_values[number]
        for d in range(len(g.values[v].shape)):
            why = self._obstacle(g, v, d)
            if why is None:
                return []
            reasons.append(why)
        return list(dict.fromkeys(reasons)) or ["a scalar"]

    def _obstacle(self, g: Graph, v: int, d: int) -> str | None:
        """Return the reason why value v cannot be sharded on dim d."""
        size = g.values[v].shape[d]
        if not fits(size, self.ranks, 1, True):
            return f"its dim {d} of size {size} is too small for {self.ranks} devices"
        for k, positions in g.uses[v]:
            node, why = g.nodes[k], None
            if node.kind == "call":
                inner = self._search.module.graphs[node.callee]
                obstacles = [self._obstacle(inner, inner.param_values[i], d) for i in positions]
                why = next((obstacle for obstacle in obstacles if obstacle is not None), None)
            elif node.rule is not None:
                why = self._refusal(g, k, positions, d)
            if why is not None:
                return why
        return None

    def _refusal(self, g: Graph, k: int, positions: Sequence[int], d: int) -> str | None:
        node = g.nodes[k]
        rule = node.rule
        if rule is None:
            return None
        for f in rule.factors:
            if not all(f.ins[i] == d for i in positions) or not factor_fits(f, self.ranks, 1):
                continue
            out = f.outs[0]
            if rule.op not in LAYOUT_OPS or out is None:
                return None
            return self._obstacle(g, node.results[0], out)
        why = rule.why_replicated.get(
            f"in{positions[0]}.dim{d}", "the mesh axis does not divide it"
        )
        return f"{rule.op} requires its dim {d} unsharded: {why}"

    def _pins(self, decision: Decision, labels: WeightLabels) -> tuple[PlacementConstraint, ...]:
        """Return the sharded results that the chosen labels do not reach."""
        reach = self._search.reach_of(labels, self._stored)
        pins: dict[tuple[str, str], set[int]] = {}
        for inst in each_instance(decision.entries[name] for name in labels):
            g, choice = inst.graph, inst.choice[0]
            for k, v, name in self._named_results(g):
                label = choice[k].gives[0]
                if label < 0:
                    wants = {choice[n].needs[i] for n, positions in g.uses[v] for i in positions}
                    label = min(wants) if len(wants) == 1 else label
                if label >= 0 and reach[g.key].active[0][g.offset[v] + label]:
                    label = R
                pins.setdefault((g.name, name), set()).add(label)
        return tuple(
            PlacementConstraint(function, variable, min(pin_labels))
            for (function, variable), pin_labels in pins.items()
            if len(pin_labels) == 1 and min(pin_labels) >= 0
        )

    @memoized
    def _named_results(self, g: Graph) -> list[tuple[int, int, str]]:
        """Return ops with a single result under a unique name: node, value, name."""
        names = {key: str(var.name) for key, var in g.variables.items()}
        often = Counter(names.values())
        return [
            (k, g.nodes[k].results[0], names[key])
            for key, k in g.node_of.items()
            if g.nodes[k].rule is not None
            and len(g.nodes[k].results) == 1
            and often[names[key]] == 1
        ]

    def _graph(self, name: str) -> Graph:
        return self._search.module.graphs[self._search.module.entries[name]]
