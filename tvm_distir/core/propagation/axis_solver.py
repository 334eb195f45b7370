# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Solves a single axis: summaries bottom-up, an exact minimisation per public function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tvm_distir.core.propagation.graph.graph import Graph
from tvm_distir.core.propagation.solve.alternatives import OpStrategy
from tvm_distir.core.propagation.solve.builder import Builder
from tvm_distir.core.propagation.solve.exact import WarmStarts, minimise
from tvm_distir.core.propagation.solve.problem import AxisProblem, AxisSummary
from tvm_distir.core.propagation.solve.tables import PriceTables
from tvm_distir.core.solver.problem import Problem
from tvm_distir.support import PropagationError

from .decision import Instance, Signature
from .instances import Instances, LocalSizes
from .module import PlacedModule
from .reach import ReachableAxes

TABLE_LIMIT = 1 << 22
"""Limit on the entries of a table; a problem that stays wider goes to the integer solver."""

SUMMARY_LIMIT = 1 << 6
"""Limit on the entries of a table of a summary; above it a variable is kept.

Small ones keep the caller's problem narrow: a function with many operands, as the backward pass
of a layer, else joins them all in its tables."""


class ProblemMaker(Protocol):
    """Protocol that builds the sharding problem of an instance along an axis."""

    def __call__(
        self,
        inst: Instance,
        a: int,
        sizes: Callable[[Instance, int], LocalSizes],
        summary_of: Callable[[Instance], AxisSummary],
        /,
    ) -> AxisProblem:
        """Return the problem; summaries are those of the callees along the same axis."""


class Problems:
    """Builds every problem anew.

    Parameters
    ----------
    prices : PriceTables
    reach : mapping of str to ReachableAxes
        Per graph.
    forced : mapping of str to Signature, optional
        What all calls of a graph must share.
    """

    def __init__(
        self,
        prices: PriceTables,
        reach: Mapping[str, ReachableAxes],
        forced: Mapping[str, Signature] | None = None,
    ) -> None:
        self.prices, self.reach, self.forced = prices, reach, forced or {}

    def __call__(
        self,
        inst: Instance,
        a: int,
        sizes: Callable[[Instance, int], LocalSizes],
        summary_of: Callable[[Instance], AxisSummary],
        /,
    ) -> AxisProblem:
        """Return the problem; see :class:`ProblemMaker`."""
        key = inst.graph.key
        return Builder(
            self.prices.along(a),
            inst,
            a,
            self.reach[key],
            sizes(inst, a),
            lambda k: summary_of(inst.kids[k]),
            self.forced.get(key),
        ).run()


class AxisSolver:
    """Assigns labels to instances along an axis.

    Parameters
    ----------
    module : PlacedModule
    reach : mapping of str to ReachableAxes
        Per graph.
    prices : PriceTables
    instances : Instances
    problems : ProblemMaker
    starts : WarmStarts, optional
        Of sharding assignments of the same module at other costs.
    """

    def __init__(
        self,
        module: PlacedModule,
        reach: Mapping[str, ReachableAxes],
        prices: PriceTables,
        instances: Instances,
        problems: ProblemMaker,
        starts: WarmStarts | None = None,
    ) -> None:
        self.module, self.reach, self.prices, self.starts = module, reach, prices, starts
        self.instances, self.problems = instances, problems
        self._summaries: dict[tuple[int, int], AxisSummary] = {}
        # Of instances called along an axis, by what is picked of the kept variables of a summary.
        self._specialised: dict[tuple[int, int, tuple[int, ...]], Instance] = {}
        self._called: dict[tuple[int, int, tuple[int, ...]], OpStrategy] = {}

    def solve(self, inst: Instance, a: int) -> tuple[Instance, int, int]:
        """Return the instance labelled along ``a``, its cost, and the gap to a lower bound.

        Raises
        ------
        PropagationError
            DIST0411 where stationary placements cannot be kept.
        """
        model = self.problem(inst, a)
        tables, problem = self.prices.tables, Problem(model.domains, model.factors)
        solution = minimise(tables, problem, TABLE_LIMIT, inst.graph.name, self.starts)
        total, forbidden = tables.evaluate(problem, solution.values)
        if not (model.feasible and solution.feasible) or forbidden:
            raise self._infeasible(inst.graph, a)
        return self._decode(inst, a, model, solution.values), model.constant + total, solution.gap

    def problem(self, inst: Instance, a: int) -> AxisProblem:
        """Return the sharding problem of an instance."""
        return self.problems(inst, a, self.instances.sizes, lambda kid: self._summary(kid, a))

    def _summary(self, inst: Instance, a: int) -> AxisSummary:
        key = (inst.number, a)
        if key in self._summaries:
            return self._summaries[key]
        self._summaries[key] = AxisSummary.of(
            self.problem(inst, a),
            inst.graph,
            self.prices.tables,
            SUMMARY_LIMIT,
            self.prices.forms.turned,
        )
        return self._summaries[key]

    def _decode(
        self, inst: Instance, a: int, model: AxisProblem, values: Sequence[int]
    ) -> Instance:
        g, kids = inst.graph, {}
        choice = [alts.items[values[u] if u >= 0 else 0] for alts, u in model.ends]
        for k in g.calls:
            spliced = model.spliced[k]
            variables, into, out = spliced.variables, spliced.params, spliced.rets
            picked = tuple(values[variables.start : variables.stop])
            kids[k] = self._specialise(inst.kids[k], a, picked)
            called = (inst.kids[k].number, a, picked)
            strategy = self._called.get(called)
            if strategy is None:
                needs = [alts.needs[values[u] if u >= 0 else 0][0] for alts, u in into]
                gives = [alts.gives[values[u] if u >= 0 else 0][0] for alts, u in out]
                strategy = self._called[called] = OpStrategy(tuple(needs), tuple(gives), None)
            choice[k] = strategy
        return self.instances.of(g, {**inst.choice, a: tuple(choice)}, kids, inst.columns)

    def _specialise(self, inst: Instance, a: int, picked: tuple[int, ...]) -> Instance:
        """Return an instance per distinct assignment of a summary's kept variables."""
        key = (inst.number, a, picked)
        if key not in self._specialised:
            summary = self._summaries[inst.number, a]
            values = summary.values(self.prices.tables, picked)
            self._specialised[key] = self._decode(inst, a, summary.model, values)
        return self._specialised[key]

    def _infeasible(self, g: Graph, a: int) -> PropagationError:
        """Build the error that names a stationary parameter which some op cannot take as it is."""
        graphs, axis = self.module.graphs, self.module.axes[a]
        for graph in [g, *[graphs[k] for k in self.module.order if graphs[k] is not g]]:
            reach = self.reach[graph.key]
            for k in graph.params:
                node = graph.nodes[k]
                fixed = node.stationary or reach.held[a].get(k, False)
                v = node.results[0]
                label = reach.fixed[a].get(k)
                if graph.public and node.pin is not None and node.pin_on(axis):
                    label = node.pin[axis.index]
                if not fixed or label is None or label < 0:
                    continue
                for kc, positions in graph.uses[v]:
                    rule = graph.nodes[kc].rule
                    if rule is None or graph.nodes[kc].kind != "op":
                        continue
                    if not any(f.ins[i] == label for f in rule.factors for i in positions):
                        why = rule.why_whole.get(f"in{positions[0]}.dim{label}", "no factor has it")
                        return PropagationError(
                            "DIST0411",
                            f"stationary {graph.values[v].name} is sharded on dim {label} along "
                            f'"{axis.name}", which {rule.op} cannot use: {why}',
                            place=graph.place(kc),
                            remedy='Place it otherwise, or say "stationary": false.',
                        )
        return PropagationError(
            "DIST0411",
            f'the stationary placements along "{axis.name}" contradict each other or do not '
            "divide the dims they shard",
            place=g.name,
            remedy='Place them otherwise, or say "stationary": false.',
        )
