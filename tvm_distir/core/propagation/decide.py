# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decide the placements of a module: solve, merge callees, and respect a memory bound."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.ir.mesh import meshes
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.rewriting.collector import gc_paused
from tvm_distir.support import PropagationError

from .assignment import Propagator
from .decision import Decision, Instance, Signature, each_instance
from .memory_bound import within


def propagate(
    mod: ir.IRModule,
    costs: Costs | None = None,
    memory_bytes: int | None = None,
    complete: bool = False,
) -> Decision:
    """Decide the placement of every value of an annotated module.

    Parameters
    ----------
    mod : IRModule
        Level 2: plain tensors and ``annotate_sharding``; meshes in ``global_infos``.
    costs : Costs, optional
        The weights of wire bytes, memory traffic and FLOPs.
    memory_bytes : int, optional
        Limit of what a device keeps, as
        :class:`~.memory_bound.MemoryMeter` counts it. Where the plain decision
        keeps more, memory gets a cost and parameters without an annotation may be sharded over
        any axis.

    complete : bool
        Whether any axis may shard any dim of what annotations leave open, not only dims that
        follow from theirs.

    Raises
    ------
    InfeasibleError
        DIST0801 when no solution fits.
    PropagationError
        DIST04xx: an op without a rule, recursion, a stationary placement that no op can use.
    """
    if not meshes(mod):
        remedy = "Run AnnotateSharding(plan), or set global_infos (mesh)."
        raise PropagationError(
            "DIST0409", "the module has no mesh", location="module", remedy=remedy
        )
    with gc_paused():
        propagator = Propagator(mod, costs or Costs(), complete)
        decision = _shared(propagator, propagator.run())
        if memory_bytes is not None:
            decision = within(propagator, decision, memory_bytes)
        propagator.close()
        return decision


def _specialisations(decision: Decision) -> dict[str, dict[Signature, Instance]]:
    """Return distinct specialisations per placed function, in order of first call."""
    result: dict[str, dict[Signature, Instance]] = {}
    for inst in each_instance(inst for _, inst in sorted(decision.entries.items())):
        for _, kid in sorted(inst.kids.items()):
            result.setdefault(kid.graph.key, {}).setdefault(kid.signature(), kid)
    return result


def _objective(solver: Propagator, decision: Decision) -> int:
    """Return the cost over all axes, and of every specialisation beyond a function's first."""
    extra = sum(len(s) - 1 for s in _specialisations(decision).values())
    return solver.cost(decision).total + solver.costs.clone * extra


def _shared(solver: Propagator, decision: Decision) -> Decision:
    """Return the decision, or a cheaper decision whose calls share specialisations.

    While specialising costs something (``Costs.clone``), each function with several signatures
    is tried with each of them forced on all its calls, callees first; the cheapest stays.
    """
    if not solver.costs.clone:
        return decision
    best = _objective(solver, decision)
    for key in solver.module.order:
        signatures = list(_specialisations(decision).get(key, {}))
        if solver.module.graphs[key].public or len(signatures) < 2:
            continue
        forced = dict(solver.forced)
        winner: Signature | None = None
        for signature in signatures:
            solver.force({**forced, key: signature})
            cost = _objective(solver, solver.run())
            if cost < best:
                best, winner = cost, signature
        solver.force(forced if winner is None else {**forced, key: winner})
        decision = solver.run()
    return decision
