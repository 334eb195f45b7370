# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a strategy, and combine its plan with data parallelism.

Run it: ``python examples/custom_strategy.py``.
"""

from __future__ import annotations

from tvm import ir

import tvm_distir as td
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule
from tvm_distir.planning.strategies import plan_maker


@plan_maker
def sharded_embedding(mod: ir.IRModule, mesh: MeshSpec, axis: str = "tp", dim: int = 0) -> Plan:
    """Plan that shards the embedding table.

    Parameters
    ----------
    mod : IRModule
    mesh : MeshSpec
    axis : str
        The mesh axis; the other axes remain open.
    dim : int
        0 shards the rows, 1 the columns.
    """
    placement: list[int | None] = [None] * len(mesh.axes)
    placement[mesh.axis_number(axis)] = dim
    rule = PlanRule("param", "wte.weight", tuple(placement), mesh=mesh.name, stationary=True)
    return Plan((mesh,), (rule,))


def main() -> None:
    """Compare the two ways to shard the table on a DGX A100."""
    mod = td.zoo.gpt(size="tiny")
    mesh = {"dp": 2, "tp": 2}
    data = td.planning.make_plan(mod, "data_parallel", mesh)
    for dim in (0, 1):
        table = sharded_embedding(mod, data.meshes[0], dim=dim)
        rules = [rule for rule in data.rules if rule.name != "wte.weight"]
        plan = Plan(data.meshes, (*rules, *table.rules))
        td.verify(mod, plan, engine="virtual").check()
        result = td.analyze(mod, plan, system="a100")
        print(f"dim {dim}: {result.time_s * 1e6:.0f} us, {result.peak_memory_bytes:,} bytes")


if __name__ == "__main__":
    main()
