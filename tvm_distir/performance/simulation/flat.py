# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate a program without stages, or a pipelined step written out: a task per op or call."""

from __future__ import annotations

import functools

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System
from tvm_distir.performance.engine.schedule import schedule
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.entries import EntryMemory, entry_memory
from tvm_distir.performance.program.program import Program

from .account import StepAccount, memory_over_time, weight_bytes
from .device_results import DeviceMemory
from .function_table import FunctionTables
from .op_costs import OpCosts
from .result import Result
from .stopwatch import StageTimes
from .task_graph import TaskNames, build_graph
from .timeline import Timeline


def simulate_flat(
    program: Program, system: System, fold_devices: bool, blocking: bool, laps: StageTimes
) -> Result:
    """Predict a step without stages: see :func:`.simulator.simulate`."""
    costs = OpCosts(program, system)
    graph = build_graph(program, costs, fold_devices, blocking)
    lowering = graph.lowering
    laps.end("build")
    start, end = schedule(graph.tasks, TaskNames(program, graph))
    laps.end("schedule")
    branch_taken = {branch.place: branch.taken for branch in lowering.branches}
    framework = functools.cache(functools.partial(CachingAllocator, program))

    @functools.cache
    def memory_of(number: int) -> EntryMemory:
        return entry_memory(program, program.entries[number], framework())

    @gc_paused()
    def held(number: int, timeline: Timeline) -> DeviceMemory:
        during, after = memory_of(number).course(branch_taken)
        last = int(timeline.end.max(initial=0))
        root = program.entries[number].function
        fn = program.functions[root]
        weights = weight_bytes(program, (fn.values[index] for index in fn.params), [root])
        return memory_over_time(memory_of(number), timeline.issued, during, last, after, weights)

    tables = FunctionTables(lowering)
    account = StepAccount(program, system, lowering, int(end.max(initial=0)))
    for part in graph.parts:
        entry = program.entries[part.entry]
        entry_tasks = graph.entries[entry.function]
        tasks = slice(part.first, part.first + entry_tasks.row.size)
        timeline = Timeline(
            part.devices[0], entry_tasks, lowering, graph.maps, start[tasks], end[tasks], tables
        )
        memory = functools.partial(held, part.entry, timeline)
        account.add(program.place_of(entry), part.devices, timeline, memory, {})
    result = account.result(laps.times_s)
    laps.end("account")
    return result
