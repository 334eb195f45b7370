# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps in stages written by hand whose ranks share nodes with few adapters."""

from __future__ import annotations

from dataclasses import replace

from tests.performance.simulation.hand_programs import Build, round_system
from tests.performance.simulation.hand_stages import Sizes, stages
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.program.mesh import Mesh


def crowded(wires=1, latency=0, **device):
    """Nodes of 4 devices and one adapter."""
    system = round_system(wires, latency, **device)
    return replace(system, inter_node=replace(system.inter_node, nics_per_node=1))


def pipeline(ranks, micros=4, kind="1f1b", dp=1, payload=0, **sizes):
    chunks = 2 if kind == "interleaved" else 1
    created = stages(Schedule(kind, ranks, micros, chunks), Sizes(**sizes))
    count = len(created.meshes)
    meshes = tuple(
        Mesh(single.name, ("dp",), (dp,), tuple(4 * k * -(-count // 4) + r for k in range(dp)))
        for r, single in enumerate(created.meshes)
    )
    functions = dict(created.functions)
    for name, fn in created.functions.items():
        if payload and name.endswith(".end"):
            build = Build()
            for index in fn.params:
                build.param(fn.values[index].name, fn.values[index].bytes)
            build.collective("summed", "sum", "all_reduce", payload, dp)
            build.compute("work", "summed", 0).compute("new_made", "work", 0)
            functions[name] = build.done("new_made")
    result = replace(created, meshes=meshes, functions=functions)
    result.check()
    return result
