# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Solves public functions over all axes of a mesh at once, or in turn where that is too wide."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tvm import ir

from tvm_distir.core.propagation.solve.axes_solver import (
    AXIS_LIMITS,
    MESH_LIMITS,
    AxesSolver,
    SolverLimits,
)
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.propagation.solve.exact import WarmStarts
from tvm_distir.core.propagation.solve.kept import give_back, take
from tvm_distir.core.propagation.solve.tables import CostTables
from tvm_distir.support import PropagationError, lists_by_key, memoized

from .decision import Decision, Instance, Signature
from .decision_cost import DecisionCost, Evaluator
from .infeasible import infeasible
from .instances import Instances
from .placed_module import PlacedModule
from .reach import ReachabilityWalk, ReachableAxes
from .unify import DimUnifier

ROUNDS = 3
"""The number of rounds in which the axes are solved in sequence while sizes change; a single axis
is solved once."""

ALL_ORDERS = 3
"""The maximum number of axes with which every order is tried where axes compete; with more, two
orders are tried."""


class ShardingAssignment:
    """A sharding assignment of a module at given costs.

    Parameters
    ----------
    module : PlacedModule
    reach : mapping of str to ReachableAxes
        The reachable axes of each graph.
    cost_tables : CostTables
    forced : mapping of str to Signature, optional
        The signature that all calls of a graph must share.
    starts : WarmStarts, optional
        The assignments along single axes of the same module at other costs, to start from.
    """

    def __init__(
        self,
        module: PlacedModule,
        reach: Mapping[str, ReachableAxes],
        cost_tables: CostTables,
        forced: Mapping[str, Signature] | None = None,
        starts: WarmStarts | None = None,
    ) -> None:
        self.module, self.reach, self.cost_tables = module, reach, cost_tables
        self.forced, self.starts = forced or {}, starts
        self.instances = Instances(module.axes, reach)

    def run(self) -> Decision:
        """Solve every public function separately; private functions are shared."""
        module = self.module
        start: dict[str, Instance] = {}
        for key in module.order:
            g = module.graphs[key]
            start[key] = self.instances.of(g, {}, {k: start[g.nodes[k].callee] for k in g.calls})
        entries, cost, gap = {}, 0, 0
        for name, key in module.entries.items():
            entries[name], entry_cost, above = self._solve(start[key])
            cost += entry_cost
            gap += above
        conversions, sizes = self.cost_tables.conversions, self.instances.value_bytes
        return Decision(module.axes, entries, cost, cost - gap, conversions, sizes)

    def cost(self, decision: Decision) -> DecisionCost:
        """Return the cost of a decision over all axes together."""
        evaluator = self._evaluator()
        return sum((evaluator.cost(inst) for inst in decision.entries.values()), DecisionCost())

    def _evaluator(self) -> Evaluator:
        return Evaluator(self.cost_tables, self.reach, self.instances.value_bytes)

    def _solve(self, start: Instance) -> tuple[Instance, int, int]:
        """Minimise over the axes of each mesh at once, or where that is too wide, in turn.

        Returns the instance, the sum of the minima, and how far they may be above a bound.
        """
        inst, total, above = start, 0, 0
        left: list[int] = []
        for axes in self._meshes():
            solution = self.solver(axes, MESH_LIMITS).solve(inst) if self._meet(axes) else None
            if solution is None:
                left += axes
                continue
            if solution[2]:
                solution = self._cheaper(inst, axes, solution)
            inst, cost, gap = solution
            total += cost
            above += gap
        if not left:
            return inst, total, above
        inst, cost, gap = self._in_turn(inst, left)
        return inst, total + cost, above + gap

    def _meshes(self) -> list[tuple[int, ...]]:
        """Return the axes of each mesh."""
        meshes = lists_by_key((axis.mesh, a) for a, axis in enumerate(self.module.axes))
        return [tuple(axes) for axes in meshes.values()]

    def _meet(self, axes: Sequence[int]) -> bool:
        """Return whether several axes reach a value, so that each changes sizes for the others."""
        return sum(any(any(r.live[a]) for r in self.reach.values()) for a in axes) > 1

    @memoized
    def solver(self, axes: tuple[int, ...], limits: SolverLimits = AXIS_LIMITS) -> AxesSolver:
        """Return the solver of some axes of a mesh."""
        starts = self.starts if limits is AXIS_LIMITS else None
        return AxesSolver(self.cost_tables, axes, self.instances, limits, self.forced, starts)

    def _cheaper(
        self, inst: Instance, axes: Sequence[int], solution: tuple[Instance, int, int]
    ) -> tuple[Instance, int, int]:
        """Return the joint solution, or a cheaper sequential one if it is not optimal."""
        try:
            other = self._in_turn(inst, axes)
        except PropagationError:  # no sequential solution; the joint solution is allowed
            return solution
        evaluator = self._evaluator()
        saved = evaluator.cost(solution[0]).total - evaluator.cost(other[0]).total
        if saved <= 0:
            return solution
        return other[0], solution[1] - saved, max(0, solution[2] - saved)

    def _in_turn(self, start: Instance, axes: Sequence[int]) -> tuple[Instance, int, int]:
        """Minimise axis by axis; where axes compete, try several orders and keep the cheapest."""
        result: list[tuple[Instance, int, int]] = []
        refusal: PropagationError | None = None
        for order in self._orders(axes):
            try:
                result.append(self._solve_in(start, order))
            except PropagationError as error:
                refusal = refusal or error
        if not result and refusal is not None:
            raise refusal
        if len(result) == 1:
            return result[0]
        evaluator = self._evaluator()
        return min(result, key=lambda solution: evaluator.cost(solution[0]).total)

    def _orders(self, axes: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the orders in which to solve axes: several where axes reach the same factor."""
        order = tuple(axes)
        if not any(self._compete(a, b) for a, b in itertools.combinations(order, 2)):
            return [order]
        if len(order) > ALL_ORDERS:
            return [order, order[::-1]]
        return list(itertools.permutations(order))

    def _compete(self, a: int, b: int) -> bool:
        if self.module.axes[a].mesh != self.module.axes[b].mesh:
            return False
        return any(
            x & y for r in self.reach.values() for x, y in zip(r.mask[a], r.mask[b], strict=True)
        )

    def _solve_in(self, inst: Instance, order: Sequence[int]) -> tuple[Instance, int, int]:
        """Solve in a given order, again while the sizes that an axis was solved with change."""
        bases: dict[int, Instance] = {}
        axis_costs: dict[int, int] = {}
        gaps, instances = 0, self.instances
        for _ in range(ROUNDS if len(order) > 1 else 1):
            before = inst
            for a in order:
                base = instances.without(inst, a)
                if a in bases and instances.same_sizes(bases[a], base, a):
                    continue
                solution = self.solver((a,)).solve(base)
                if solution is None:
                    raise infeasible(self.module, self.reach, base.graph, a)
                inst, axis_costs[a], gap = solution
                bases[a] = base
                gaps += gap
            if inst is before:
                break
        return inst, sum(axis_costs.values()), gaps


class Propagator:
    """Solver of a module under changing weights, signatures and free parameters.

    Parameters
    ----------
    mod : IRModule
        The module, at level 2.
    costs : Costs
    complete : bool
        Whether any axis may shard any dim of what annotations leave open.

    Attributes
    ----------
    module : PlacedModule
    forced : mapping of str to Signature
        The signature that all calls of a function must share.
    assignment : ShardingAssignment
        The assignment for the latest request.
    """

    def __init__(self, mod: ir.IRModule, costs: Costs, complete: bool = False) -> None:
        self.module = PlacedModule.of(mod)
        self._free, self._complete = False, complete
        self.costs = costs
        self._cost_tables: CostTables | None = None
        self.force({})

    def force(self, signatures: Mapping[str, Signature]) -> None:
        """Start afresh, with the same signature for all calls of some placed functions."""
        self.forced = signatures
        self._spread()

    def free_parameters(self) -> None:
        """Start afresh; free parameters may be sharded over any axis."""
        self._free = True
        self._spread()

    def _spread(self) -> None:
        unified = DimUnifier(self.module, self.forced, self._free, self._complete).run()
        self._reach = ReachabilityWalk(self.module, unified).run()
        self.set_costs(self.costs)

    def set_costs(self, costs: Costs) -> None:
        """Start afresh with other weights."""
        self.costs = costs
        self.close()
        module, reach = self.module, self._reach
        cost_tables = self._cost_tables = take(costs.for_ops(*module.largest), module.axes)
        self.assignment = ShardingAssignment(module, reach, cost_tables, self.forced)

    def run(self) -> Decision:
        """Decide every public function."""
        return self.assignment.run()

    def cost(self, decision: Decision) -> DecisionCost:
        """Return the cost of a decision of the current assignment over all axes together."""
        return self.assignment.cost(decision)

    def close(self) -> None:
        """Release the tables for the next propagator; afterwards this object decides nothing."""
        if self._cost_tables is not None:
            give_back(self._cost_tables)
            self._cost_tables = None
