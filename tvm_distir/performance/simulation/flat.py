# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate a program without stages, or a pipelined step written out: a task per op or call."""

from __future__ import annotations

import functools

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System
from tvm_distir.performance.event_loop.schedule import schedule
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.performance.memory.residents import weight_bytes
from tvm_distir.performance.program.parts import reached
from tvm_distir.performance.program.program import Program
from tvm_distir.support import SimulationError, Stopwatch

from .device_results import DeviceMemory
from .module_times import ModuleNames
from .op_costs import OpCosts
from .result import Result
from .step_account import StepAccount, memory_over_time
from .task_graph import TaskNames, build_graph
from .timeline import Timeline


def simulate_flat(
    program: Program,
    system: System,
    fold_devices: bool,
    blocking: bool,
    watch: Stopwatch,
    modules: ModuleNames,
) -> Result:
    """Predict a step without stages: see :func:`.simulator.simulate`."""
    with watch.stage("build"):
        costs = OpCosts(program, system)
        _check_devices(program, system, costs)
        graph = build_graph(program, costs, fold_devices, blocking)
    lowering = graph.lowering
    with watch.stage("schedule"):
        start, end = schedule(graph.tasks, TaskNames(program, graph))
    branch_taken = {branch.place: branch.taken for branch in lowering.branches}

    @functools.cache
    def memories() -> RankMemories:
        return RankMemories(program, CachingAllocator(program))

    @gc_paused()
    def peak_of(number: int) -> int:
        return memories().of(number).peak_bytes

    @gc_paused()
    def held(number: int, timeline: Timeline) -> DeviceMemory:
        memory, last = memories().of(number), int(timeline.end.max(initial=0))
        during, after = memories().by_op(memory, branch_taken)
        weights = weight_bytes(program, number)
        return memory_over_time(memory, timeline.issued, during, last, after, weights)

    with watch.stage("account"):
        account = StepAccount(program, system, lowering, int(end.max(initial=0)), modules)
        for part in graph.parts:
            entry = program.entries[part.entry]
            entry_tasks = graph.entries[entry.function]
            tasks = slice(part.first, part.first + entry_tasks.row.size)
            times = start[tasks], end[tasks]
            timeline = Timeline(part.devices[0], entry_tasks, lowering, graph.maps, *times, modules)
            memory = functools.partial(held, part.entry, timeline)
            peak = functools.partial(peak_of, part.entry)
            mesh, of_devices = program.location_of(entry), costs.systems[entry.mesh]
            account.add(mesh, part.devices, timeline, memory, peak, {}, of_devices)
        return account.result(watch.timings_s)


def _check_devices(program: Program, system: System, costs: OpCosts) -> None:
    """Refuse a function that unequal devices run, since its ops have one time."""
    for entry in program.entries if system.stages else ():
        for name in reached(program.functions, [entry.function]):
            if costs.systems[program.functions[name].mesh] != costs.systems[entry.mesh]:
                raise SimulationError(
                    "DIST0723", f'devices of several types run the function "{name}"',
                    location="program", remedy="Create the step with a schedule.",
                )  # fmt: skip
