# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate a pipelined step: each phase once, then units and messages by schedule.

The result is that of simulating the step written out. Each unit is a max-plus map, which is exact
for fixed durations, so the time taken grows with units, not with ops.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tvm_distir.core import Step, System, programs
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories, RankMemory
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.staged import PipelineProgram
from tvm_distir.performance.simulation.costs import OpCosts
from tvm_distir.performance.simulation.device_results import DeviceGroupResult
from tvm_distir.performance.simulation.devices import Devices
from tvm_distir.performance.simulation.function_table import FunctionTables
from tvm_distir.performance.simulation.result import PipelineResult, Result
from tvm_distir.performance.simulation.statistics import Traffic, Work, totals, unmodelled
from tvm_distir.performance.simulation.stopwatch import StageTimes
from tvm_distir.performance.simulation.timeline import seconds

from .accounts import CallSums, RankAccount
from .kinds import RankClasses
from .loads import StageLoads
from .runs import StageRuns
from .steps import StageSteps


def simulate_stages(
    program: Program,
    staged: PipelineProgram,
    system: System,
    blocking: bool,
    contention: bool = False,
) -> Result:
    """Predict a pipelined step: see :func:`.simulator.simulate`.

    Parameters
    ----------
    program : Program
    staged : PipelineProgram
        Of the program.
    system : System
    blocking : bool
    contention : bool
    """
    laps = StageTimes()
    kinds = RankClasses(program, staged, system, blocking)
    laps.end("build")
    costs = OpCosts(program, system)
    steps = StageSteps(staged, kinds, costs)
    loads = None
    if contention:
        loads = StageLoads(program, system, kinds, steps, costs).loads()
    ran = StageRuns(kinds, steps, program.meshes, loads)
    laps.end("schedule")
    lanes: list[DeviceGroupResult] = []
    works: list[Work] = []
    moved: Traffic = {}
    tables = FunctionTables(kinds.lowering)

    @functools.cache
    def memories() -> tuple[RankMemories, list[list[Step]]]:
        return RankMemories(program, staged, CachingAllocator(program)), programs(staged.schedule)

    def memory(rank: int) -> RankMemory:
        memories_of_ranks, steps = memories()
        return memories_of_ranks.of(rank, steps[rank])

    sums = CallSums(kinds.lowering)
    for rank in range(len(program.meshes)):
        account = RankAccount(program, staged, rank, ran, sums, functools.partial(memory, rank))
        lane, work = account.run(ran.finish, tables)
        lanes.append(lane)
        works.append(work)
        moved.update(account.traffic(costs))
    schedule = staged.schedule
    result = Result(
        system=system.name,
        time_s=seconds(ran.finish),
        memory_capacity_bytes=system.memory_capacity_bytes,
        devices=Devices(lanes, works),
        collectives=totals(moved),
        unmodelled_ops=unmodelled(kinds.lowering.rows),
        branches=tuple(dict.fromkeys(kinds.lowering.branches)),
        lanes=tuple(lanes),
        timings_s=laps.times_s,
        meshes=program.meshes,
        pipeline=PipelineResult(
            schedule.kind,
            schedule.stages,
            schedule.chunks,
            schedule.micro_batches,
            _bubble(works, seconds(ran.finish)),
        ),
    )
    laps.end("account")
    return result


def _bubble(works: Sequence[Work], time_s: float) -> float:
    """Return the share of the step in which ranks neither compute nor communicate, on average."""
    idle_s = sum(seconds(work.idle_ps) for work in works)
    return idle_s / (len(works) * time_s) if time_s > 0 else 0.0
