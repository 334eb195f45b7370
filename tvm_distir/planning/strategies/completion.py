# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Place what other strategies leave open at the lowest cost."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.plan import Plan

from .model_info import MeshLike, as_mesh_spec
from .registry import plan_maker


@plan_maker
def complete(mod: ir.IRModule, mesh: MeshLike) -> Plan:
    """Plan that lets any axis shard what the other strategies leave open.

    Propagation shards along an axis the dims that follow from those that rules shard, and no
    others: tensor parallelism of the weights leaves norms and residual sums whole. With this they
    are cut where that is cheapest, for the system that the plan is for.

    Parameters
    ----------
    mod : IRModule
    mesh : MeshSpec or mapping of str to int

    Returns
    -------
    Plan
        Without a rule.
    """
    return Plan((as_mesh_spec(mesh),), complete=True)
