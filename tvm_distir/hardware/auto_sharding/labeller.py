# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Assigns placements to all values and calls on all axes at once, with a bound on the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tvm.ir import IRModule

from tvm_distir.core.ir import meshes
from tvm_distir.core.ir.attributes import param_names, training_notes
from tvm_distir.core.propagation import (
    Decision,
    DimUnifier,
    Graph,
    PlacedModule,
    ReachabilityWalk,
    Solution,
    WarmStarts,
    minimise,
)
from tvm_distir.core.solver import Problem, Tables
from tvm_distir.hardware.systems.system import System
from tvm_distir.support import (
    InfeasibleError,
    Steps,
    UsageError,
    memoized,
    memoized_steps,
    unrolled,
)

from .decisions import axes_of, decision_of, mesh_of
from .edge_builder import EdgeBuilder
from .in_flight import NO_FLIGHT, flights_of
from .memory_bound import MemorySearch
from .mesh_costs import MeshCostCache
from .nodes import NodeBuilder
from .overlap import OverlapDiscount
from .sharding_problem import Assembly, ShardingProblem, Shared

WIDTH = 1 << 22
"""Entries of a bucket that elimination may join."""


class ShardingProblemBuilder:
    """Builder of the problems of a module's functions, each built once.

    A call of an op is a variable whose states choose an alternative along every axis. A value with
    a single reader is a table over its producer and that reader: the cost of resharding it. A value
    with several readers gets a variable, the placement in which it is stored; readers take what
    they need from it by steps that send nothing. A call of a private function holds that function's
    variables, so that every call may have its strategy; equal calls are joined by elimination.

    Parameters
    ----------
    shared : Shared
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def of(self, key: str) -> ShardingProblem:
        """Return the problem of a graph."""
        return unrolled(self._of(key))

    @memoized_steps
    def _of(self, key: str) -> Steps[ShardingProblem]:
        graph = self.shared.module.graphs[key]
        for k in graph.calls:
            yield self._of(graph.nodes[k].callee)
        assembly = Assembly(self.shared, graph)
        NodeBuilder(assembly, self.of).run()
        if assembly.net.feasible:  # else a node has no state, and nothing is to be handed over
            EdgeBuilder(assembly).run()
        return assembly.net


class ShardingSolution(NamedTuple):
    """A sharding assignment of a module with its cost.

    ``cost_ps`` is the cost of a run: work, then all communication that counts, in sequence; no
    assignment of the module on its meshes is cheaper than ``bound_ps``. ``entries_ps`` has the cost
    of each public function, ``peak_bytes`` the peak memory of a device, as :mod:`.liveness` counts
    it.
    """

    cost_ps: int
    bound_ps: int
    peak_bytes: int
    decision: Decision
    entries_ps: Mapping[str, int]


class Labeller:
    """Auto-sharding solver of an annotated module.

    Parameters
    ----------
    mod : IRModule
        The module, at level 2, without branches.
    system : System
        The system whose times are the costs.
    mesh_costs : MeshCostCache, optional
        The costs on meshes of the system, shared with solvers of other modules.
    """

    def __init__(
        self, mod: IRModule, system: System, mesh_costs: MeshCostCache | None = None
    ) -> None:
        self.mod = mod
        self.module = PlacedModule.of(mod)
        self.reach = ReachabilityWalk(self.module, DimUnifier(self.module, {}, True).run()).run()
        cache = MeshCostCache(system) if mesh_costs is None else mesh_costs
        self.mesh_costs = [cache.of(mesh) for mesh in meshes(mod)]
        self.tables = Tables()
        self.in_flight_of = flights_of(mod)
        self.solutions: dict[str, tuple[ShardingProblem, Sequence[int]]] = {}
        """The problem of each public function and the values of its variables, once solved."""
        self._shared: dict[str, Shared] = {}

    def run(self, gap: float, memory_bytes: int | None, hidden: float = 0.0) -> ShardingSolution:
        """Solve every public function.

        Parameters
        ----------
        gap : float
            Stop once the cost is proved to be at most this share above the least.
        memory_bytes : int, optional
            The maximum number of bytes that a device may store.
        hidden : float
            A share below 1, which is taken off the cost of sending what can be sent beside the
            work: weights, and what only their new values come of. Price and bound are then of what
            is left.

        Raises
        ------
        UsageError
            DIST0151 where ``hidden`` is no share below 1.
        InfeasibleError
            DIST0801 where nothing fits into the memory, DIST0802 where the annotations allow
            nothing.
        PlanError
            DIST0237 where a function has several meshes.
        """
        if not 0 <= hidden < 1:
            problem = f"the overlapped share of communication is {hidden}"
            remedy = "Give a number from 0 to below 1."
            raise UsageError("DIST0151", problem, location="label", remedy=remedy)
        entry_costs, bound, peak = dict[str, int](), 0, 0
        for name in self.module.entries:
            search = self._search(name, hidden, gap)
            labelled = search.run(memory_bytes)
            entry_costs[name] = labelled.cost
            bound += labelled.bound
            peak = max(peak, labelled.peak_bytes)
            self.solutions[name] = (search.net, labelled.values)
        cost = sum(entry_costs.values())
        decision = decision_of(self.module, self.reach, self.solutions, cost, bound)
        return ShardingSolution(cost, bound, peak, decision, entry_costs)

    def net(self, name: str, hidden: float = 0.0) -> ShardingProblem:
        """Return the problem of a public function; ``hidden`` as for :meth:`run`."""
        key = self.module.entries[name]
        g = self.module.graphs[key]
        shared = self._shared.get(name)
        if shared is None:
            updates, mesh_costs = self._updates(g), self.mesh_costs[mesh_of(g)]
            flight = self.in_flight_of.get(name, NO_FLIGHT)
            shared = self._shared[name] = Shared(
                self.module, self.reach, mesh_costs, axes_of(self.module, g), self.tables, updates,
                flight, OverlapDiscount(self.module, key, updates, 0.0),
            )  # fmt: skip
        discount = OverlapDiscount(self.module, key, shared.updates, hidden)
        return ShardingProblemBuilder(shared.discounted(discount)).of(key)

    @memoized
    def _search(self, name: str, hidden: float, gap: float) -> MemorySearch:
        """Return the search of a public function; what one limit computes serves the next."""
        net = self.net(name, hidden)
        tables, starts = self.tables, WarmStarts()  # memory changes tables, not their scopes

        def solve(problem: Problem, constant: int) -> Solution:
            solution = minimise(tables, problem, WIDTH, name, starts, gap=gap, constant=constant)
            _, forbidden = tables.evaluate(problem, solution.values)
            if not net.feasible or not solution.feasible or forbidden:
                raise InfeasibleError(
                    "DIST0802",
                    "the rules of the plan allow no placement of all values",
                    location=name,
                    remedy='Remove some of them, or set "stationary": false.',
                )
            return solution

        return MemorySearch(tables, net, solve, name, gap)

    def _updates(self, g: Graph) -> dict[int, int]:
        """Map results of a training step that update parameters to these parameters."""
        notes = training_notes(g.fn, "updated")
        if not notes:
            return {}
        numbers = {name: i for i, name in enumerate(param_names(g.fn))}
        results = {v: i for i, v in enumerate(g.result_values) if v >= 0}
        for v, i in list(results.items()):
            node = g.nodes[g.producer[v][0]]
            if node.kind == "pin" and node.operands[0] >= 0:  # noted by its name before
                results.setdefault(node.operands[0], i)
        at = {
            str(var.name): results[g.env[key][0]]
            for key, var in g.variables.items()
            if len(g.env.get(key, ())) == 1 and g.env[key][0] in results
        }
        return {
            at[str(value)]: numbers[name]
            for name, value in notes.items()
            if str(value) in at and name in numbers
        }
