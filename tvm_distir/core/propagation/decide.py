# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decides the placements of a module: solves, merges callees, and respects a memory bound."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.cost_model.system import System
from tvm_distir.core.ir.mesh import meshes
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.rewriting.collector import gc_paused
from tvm_distir.support import PropagationError

from .cost_weights import costs_for
from .decision import Decision
from .driver import Propagator
from .memory import within
from .specialise import shared


def propagate(
    mod: ir.IRModule,
    costs: Costs | None = None,
    memory_bytes: int | None = None,
    system: System | str | None = None,
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
        :class:`~tvm_distir.core.propagation.memory.MemoryMeter` counts it. Where the plain decision
        keeps more, memory gets a cost and parameters without an annotation may be sharded over
        any axis.

    system : System or str, optional
        A system whose times give the costs in proportion, where no costs are given.
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
        raise PropagationError(
            "DIST0409",
            "the module has no mesh",
            place="module",
            remedy="Run AnnotateSharding(plan), or set global_infos (mesh).",
        )
    with gc_paused():
        propagator = Propagator(mod, costs or costs_for(mod, system), complete)
        decision = shared(propagator, propagator.run())
        if memory_bytes is not None:
            decision = within(propagator, decision, memory_bytes)
        propagator.close()
        return decision
