# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate a pipelined step: each phase once, then units and messages by schedule.

The result is that of simulating the step written out. Each unit is a max-plus map, which is exact
for fixed durations, so the time taken grows with units, not with ops.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tvm_distir.core.plan import RankStep, programs
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.performance.program.pipeline_program import PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.account import (
    StepAccount,
    Traffic,
    add_traffic,
    memory_over_time,
    weight_bytes,
)
from tvm_distir.performance.simulation.device_results import DeviceMemory
from tvm_distir.performance.simulation.devices import DeviceWork
from tvm_distir.performance.simulation.function_table import FunctionTables
from tvm_distir.performance.simulation.op_costs import OpCosts
from tvm_distir.performance.simulation.result import PipelineResult, Result
from tvm_distir.performance.simulation.stopwatch import StageTimes
from tvm_distir.performance.simulation.timeline import seconds

from .loads import StageLoads
from .optimizer_overlap import with_optimizer_overlap
from .rank_arrays import StageSteps
from .rank_classes import RankClasses
from .runs import StageRuns
from .stage_timelines import StageTimeline


def simulate_stages(
    program: Program,
    staged: PipelineProgram,
    system: System,
    blocking: bool,
    contention: bool,
    laps: StageTimes,
    overlap_optimizer: bool = False,
) -> Result:
    """Predict a pipelined step: see :func:`.simulator.simulate`.

    Parameters
    ----------
    program : Program
    staged : PipelineProgram
        The pipelined step of the program.
    system : System
    blocking : bool
    contention : bool
    laps : StageTimes
    overlap_optimizer : bool
    """
    if overlap_optimizer:
        program = with_optimizer_overlap(program)
        assert program.staged is not None
        staged = program.staged
    kinds = RankClasses(program, staged, system, blocking)
    laps.end("build")
    costs = OpCosts(program, system)
    steps = StageSteps(staged, kinds, costs)
    loads = None
    if contention:
        loads = StageLoads(program, system, kinds, steps, costs).loads()
    ran = StageRuns(kinds, steps, program.meshes, loads)
    laps.end("schedule")

    @functools.cache
    def memories() -> tuple[RankMemories, list[list[RankStep]]]:
        return RankMemories(program, staged, CachingAllocator(program)), programs(staged.schedule)

    @gc_paused()
    def held(rank: int, timeline: StageTimeline) -> DeviceMemory:
        memories_of_ranks, rank_steps = memories()
        memory = memories_of_ranks.of(rank, rank_steps[rank])
        stages = [stage for stage, other in enumerate(staged.schedule.rank_of) if other == rank]
        roots = {phase.function for stage in stages for phase in staged.role_of(stage).phases}
        starts = {
            (run.stage, run.name): iter(begin.tolist()) for run, _, begin, _ in timeline.parts
        }
        issued = [
            next(starts.get((event.stage, event.name), iter(())), ran.finish)
            for event in memory.events
        ]
        return memory_over_time(
            memory, np.array(issued, np.int64), memory.during, ran.finish, int(memory.after[-1]),
            weight_bytes(program, (value for _, _, value in staged.inputs(rank)), sorted(roots)),
        )  # fmt: skip

    account = StepAccount(program, system, kinds.lowering, ran.finish)
    tables = FunctionTables(kinds.lowering)
    for rank, mesh in enumerate(program.meshes):
        timeline = StageTimeline.of(staged, rank, ran, tables)
        memory, traffic = functools.partial(held, rank, timeline), _traffic(timeline, costs)
        account.add(mesh.name, mesh.device_ids, timeline, memory, traffic, mesh)
    schedule = staged.schedule
    bubble = _bubble(account.works, seconds(ran.finish))
    numbers = (schedule.stages, schedule.chunks, schedule.micro_batches)
    result = account.result(laps.times_s, PipelineResult(schedule.kind, *numbers, bubble))
    laps.end("account")
    return result


def _traffic(timeline: StageTimeline, costs: OpCosts) -> Traffic:
    """Return the messages that a rank receives, and its copies to and from the host."""
    result: Traffic = {}
    ran, rank = timeline.ran, timeline.rank
    mesh, rank_of = ran.meshes[rank], timeline.staged.schedule.rank_of
    for messages in timeline.received:
        edge, count = messages.edge, int(messages.start.size)
        if not count:
            continue
        peer = rank_of[edge.source[0]]
        key = mesh.name, "send", f"{ran.meshes[peer].name}->{mesh.name}", len(mesh.device_ids)
        _, duration = costs.edge_ps(edge, peer, rank)
        add_traffic(result, key, count, (edge.bytes[1], edge.part_bytes[1], duration))
        late = int((messages.end - messages.start).sum()) - count * ran.edge_ps(edge)
        result[key][3] += late
    for copies in timeline.copied:
        move, count = copies.move, int(copies.start.size)
        key = mesh.name, move.kind, "host", len(mesh.device_ids)
        add_traffic(result, key, count, (move.bytes, move.bytes, move.spent_ps))
    return result


def _bubble(works: Sequence[DeviceWork], time_s: float) -> float:
    """Return the share of the step in which ranks neither compute nor communicate, on average."""
    idle_s = sum(seconds(work.idle_ps) for work in works)
    return idle_s / (len(works) * time_s) if time_s > 0 else 0.0
