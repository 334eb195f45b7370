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

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.performance.memory.residents import weight_bytes
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.device_results import DeviceMemory
from tvm_distir.performance.simulation.devices import DeviceWork
from tvm_distir.performance.simulation.module_times import ModuleNames
from tvm_distir.performance.simulation.op_records import seconds
from tvm_distir.performance.simulation.result import PipelineResult, Result
from tvm_distir.performance.simulation.step_account import (
    StepAccount,
    Traffic,
    add_traffic,
    memory_over_time,
)
from tvm_distir.support import Stopwatch

from .loads import StageLoads
from .rank_arrays import StageSteps
from .runs import StageRuns
from .stage_timelines import StageTimeline


def simulate_stages(
    program: Program,
    system: System,
    blocking: bool,
    contention: bool,
    watch: Stopwatch,
    modules: ModuleNames,
) -> Result:
    """Predict a pipelined step: see :func:`.simulator.simulate`."""
    with watch.stage("build"):
        steps = StageSteps.of(program, system, blocking)
    lowering, schedule = steps.kinds.lowering, steps.schedule
    with watch.stage("schedule"):
        loads = StageLoads(program, system, steps).loads() if contention else None
        ran = StageRuns(steps, program.meshes, modules, loads)

    @functools.cache
    def memories() -> RankMemories:
        return RankMemories(program, CachingAllocator(program))

    @gc_paused()
    def peak_of(rank: int) -> int:
        return memories().of(rank).peak_bytes

    @gc_paused()
    def held(rank: int, timeline: StageTimeline) -> DeviceMemory:
        memory = memories().of(rank)
        starts = {
            (run.stage, run.name): iter(begin.tolist()) for run, _, begin, _ in timeline.parts
        }
        issued = [
            next(starts.get((event.stage, event.name), iter(())), ran.finish)
            for event in memory.events
        ]
        times, after = np.array(issued, np.int64), int(memory.after[-1])
        weights = weight_bytes(program, rank)
        return memory_over_time(memory, times, memory.during, ran.finish, after, weights)

    with watch.stage("account"):
        account = StepAccount(program, system, lowering, ran.finish, modules)
        for rank, mesh in enumerate(program.meshes):
            timeline = StageTimeline.of(rank, ran)
            memory, traffic = functools.partial(held, rank, timeline), _traffic(timeline)
            part, peak = steps.costs.systems[rank], functools.partial(peak_of, rank)
            account.add(mesh.name, mesh.device_ids, timeline, memory, peak, traffic, part, mesh)
        bubble = _bubble(account.works, seconds(ran.finish))
        numbers = (schedule.stages, schedule.chunks, schedule.micro_batches)
        return account.result(watch.timings_s, PipelineResult(schedule.kind, *numbers, bubble))


def _traffic(timeline: StageTimeline) -> Traffic:
    """Return the messages that a rank receives, and its copies to and from the host."""
    result: Traffic = {}
    ran, rank = timeline.ran, timeline.rank
    mesh, rank_of = ran.meshes[rank], ran.steps.rank_of
    for messages in timeline.received:
        edge, count = messages.edge, int(messages.start.size)
        if not count:
            continue
        peer = rank_of[edge.source[0]]
        key = mesh.name, "send", f"{ran.meshes[peer].name}->{mesh.name}", len(mesh.device_ids)
        _, duration = ran.steps.costs.edge_ps(edge, peer, rank)
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
