# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose placements of values and ops along all axes at once, with an optimality bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir

from tvm_distir.core.ir import check_module, lift_branches, meshes
from tvm_distir.core.passes import AnnotateSharding
from tvm_distir.core.plan import DEFAULT_MESH, MeshSpec, Plan
from tvm_distir.core.propagation import Decision, PlacedModule, labels_of_decision
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import PICOSECONDS, Labeller, MeshCostCache, System, on_stages, plan_of
from tvm_distir.performance import Program, Result, export
from tvm_distir.support import PlanError
from tvm_distir.transforms import pipeline

MeshLike = MeshSpec | Mapping[str, int] | Sequence[MeshSpec]


@dataclass(frozen=True)
class ShardedCandidate:
    """Module with a sharding assignment.

    Attributes
    ----------
    annotated : IRModule
        The module at level 2, with the mesh.
    meshes : tuple of MeshSpec
        The meshes, several where stages have different meshes.
    system : System
    cost_ps : int
        The cost of a run: work, and all communication that counts, in sequence.
    bound_ps : int
        No sharding assignment of the module on this mesh is cheaper.
    decision : Decision
    peak_bytes : int
        Most that a device keeps: parameters, and the values alive at the worst moment, new forms
        of parameters in the place of the old ones. Of a stage also sums over micro-batches, and
        the stashes of those in flight.
    entries_ps : mapping of str to int
        The price, function by public function.
    module : PlacedModule
        The placed form of ``annotated``.
    fixed : Plan
        The rules that hold.
    """

    annotated: ir.IRModule
    meshes: tuple[MeshSpec, ...]
    system: System
    cost_ps: int
    bound_ps: int
    decision: Decision
    peak_bytes: int
    entries_ps: Mapping[str, int]
    module: PlacedModule
    fixed: Plan

    @property
    def price_s(self) -> float:
        """Return the cost in seconds."""
        return self.cost_ps / PICOSECONDS

    @property
    def gap(self) -> float:
        """Return the relative optimality gap of the cost; 0 if it is proved optimal."""
        return (self.cost_ps - self.bound_ps) / self.cost_ps if self.cost_ps else 0.0

    @property
    def status(self) -> str:
        """Return ``exact`` where the cost is the minimum, else ``gap``."""
        return "exact" if self.cost_ps <= self.bound_ps else "gap"

    def distribute(self) -> ir.IRModule:
        """Return the module on the devices: level 5, as ``td.distribute`` gives it."""
        plan = Plan(self.meshes)
        return pipeline(plan, system=self.system, decision=self.decision)(self.annotated)

    def program(self) -> Program:
        """Return the program for the simulation."""
        return export(self.distribute())

    def plan(self) -> Plan:
        """Return the assignment as data: all labels, and the rules that can express them.

        Rules cannot say that calls of a function are done in different ways, or that a value
        waits unfinished; where labels are removed, that is left to propagation.
        """
        rules = (*self.fixed.rules, *plan_of(self.decision, self.meshes).rules)
        labels = labels_of_decision(self.decision, self.module, len(self.fixed.rules))
        return Plan(self.meshes, rules, labels=labels)


def auto_shard(
    mod: ir.IRModule,
    mesh: MeshLike,
    system: System | str,
    *,
    fixed: Plan | None = None,
    gap: float = 0.0,
    memory_bytes: int | None = None,
    hidden: float = 0.0,
) -> ShardedCandidate:
    """Find the cheapest placements of all values, along all axes of a mesh at once.

    Parameters
    ----------
    mod : IRModule
        Level 1 or 2, inference or a training step.
    mesh : MeshSpec, mapping of str to int, or sequence of MeshSpec
        The axes of the mesh; or the meshes of which the schedule of a pipelined step (``meshes``)
        names a mesh for each rank: each stage is solved separately.
    system : System or str
        The system whose times are the costs.
    fixed : Plan, optional
        Rules that hold; the rest is free.
    gap : float
        Stop once the price is proved to be at most this share above the least.
    memory_bytes : int, optional
        The maximum number of bytes that a device may store, as :attr:`ShardedCandidate.peak_bytes`
        counts them.
    hidden : float
        A share below 1, which is taken off the price of sending what can be sent beside the work:
        weights, and what only their new values come of. Price and bound are then of what is left.

    Raises
    ------
    UsageError
        DIST0151 where ``hidden`` is no share below 1.
    InfeasibleError
        DIST0801 where nothing fits into the memory.
    InfeasibleError
        DIST0802 where the rules allow nothing.
    PlanError
        DIST0237 where the rules or the module have another mesh, or a function several.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> sharding = td.auto_shard(mod, {"tp": 2}, "h100")
    >>> sharding.status, sharding.plan().meshes[0].axes
    ('exact', {'tp': 2})
    """
    check_module(mod, "td.auto_shard")
    with gc_paused():
        return labeller_of(mod, mesh, system, fixed).run(gap, memory_bytes, hidden)


label = auto_shard
"""Former name of :func:`auto_shard`, which stays valid."""


def labeller_of(
    mod: ir.IRModule,
    mesh: MeshLike,
    system: System | str,
    fixed: Plan | None = None,
    mesh_costs: MeshCostCache | None = None,
) -> PlanLabeller:
    """Return the solver of a module; arguments as for :func:`auto_shard`.

    ``mesh_costs`` are the costs on meshes of the system, shared with solvers of other modules.
    """
    resolved = System.required(system, "automatic sharding")
    plan = on_stages(mod, fixed or Plan(_specs(mesh)))
    with gc_paused():
        annotated = lift_branches(AnnotateSharding(plan)(mod))
        if len(meshes(annotated)) != len(plan.meshes):
            raise PlanError(
                "DIST0237",
                f"{len(meshes(annotated))} meshes, and placements are requested on "
                f"{len(plan.meshes)}",
                location="auto_shard",
                remedy="Split the model into stages, and shard each automatically.",
            )
    return PlanLabeller(annotated, resolved, plan, mesh_costs)


def _specs(mesh: MeshLike) -> tuple[MeshSpec, ...]:
    """Return the meshes as they may be given."""
    if isinstance(mesh, MeshSpec):
        return (mesh,)
    return (MeshSpec(DEFAULT_MESH, dict(mesh)),) if isinstance(mesh, Mapping) else tuple(mesh)


class PlanLabeller:
    """Solver of an annotated module, whose solution is given as a plan.

    Parameters
    ----------
    mod : IRModule
        The module, at level 2, without branches.
    system : System
    fixed : Plan
        The plan whose rules are annotated, with the meshes.
    mesh_costs : MeshCostCache, optional
        The costs on meshes of the system, shared with solvers of other modules.
    """

    def __init__(
        self, mod: ir.IRModule, system: System, fixed: Plan, mesh_costs: MeshCostCache | None = None
    ) -> None:
        self.mod, self.system, self.fixed = mod, system, fixed
        self.labeller = Labeller(mod, system, mesh_costs)

    def run(self, gap: float, memory_bytes: int | None, hidden: float = 0.0) -> ShardedCandidate:
        """Shard every public function; arguments as for :func:`auto_shard`."""
        solution = self.labeller.run(gap, memory_bytes, hidden)
        return ShardedCandidate(
            self.mod, self.fixed.meshes, self.system, solution.cost_ps, solution.bound_ps,
            solution.decision, solution.peak_bytes, solution.entries_ps, self.labeller.module,
            self.fixed,
        )  # fmt: skip


@dataclass(frozen=True)
class LimitedLabeller:
    """Solver of a candidate within a limit of memory.

    Attributes
    ----------
    labeller : PlanLabeller
    free : ShardedCandidate
        The fastest placements without a limit.
    limit : int
        Bytes that a device may keep as the solver counts them.
    simulated : tuple of (Plan, Result), optional
        The plan of ``free`` and its simulation, where it exceeds the limit of the search, or the
        profile quantizes operands.
    """

    labeller: PlanLabeller
    free: ShardedCandidate
    limit: int
    simulated: tuple[Plan, Result] | None
