# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A step in stages simulated: each phase once, then units and messages in the schedule's order.

The result is that of simulating the step written out. Each unit is a max-plus map (see
:mod:`.summary`), which is exact for fixed durations, so the time taken grows with units, not with
ops; ops are only counted, and memory summed up, in arrays per rank.
"""

from __future__ import annotations

from ..errors import SimulationError
from ..program import Program, Staged
from ..schedules import programs
from ..system import System
from .accounts import Traffic, totals, unmodelled
from .costs import OpCosts
from .lanes import DeviceResult, Lane
from .laps import Laps
from .memory import Framework, RankMemories
from .rank_state import RankState
from .result import PipelineResult, Result
from .stage_accounts import RankAccount
from .stage_kinds import Kinds
from .stage_runs import StageRuns
from .timeline import seconds

_LARGEST_PS = 1 << 60


def simulate_stages(
    program: Program, staged: Staged, system: System, engine: str, blocking: bool
) -> Result:
    """Predict a step in stages: see :func:`.simulator.simulate`.

    Parameters
    ----------
    program : Program
    staged : Staged
        Of the program.
    system : System
    engine : str
    blocking : bool
    """
    laps = Laps()
    kinds = Kinds(program, staged, system, blocking, engine)
    laps.end("build")
    costs = OpCosts(program, system)
    runs = StageRuns(program, staged, kinds, costs)
    runs.run()
    finish = max(_finish(state) for state in runs.ranks)
    if finish > _LARGEST_PS:
        raise SimulationError(
            "DIST0721",
            "the simulated time does not fit in 64-bit picoseconds (13 days)",
            place="schedule",
            remedy="Check the numbers of the system and the sizes of the program.",
        )
    laps.end("schedule")
    lanes: list[Lane] = []
    devices: list[DeviceResult] = []
    moved: Traffic = {}
    memories, steps = RankMemories(program, staged, Framework(program)), programs(staged.schedule)
    for rank, state in enumerate(runs.ranks):
        memory = memories.of(rank, steps[rank])
        account = RankAccount(program, staged, rank, state, kinds.of_rank[rank], memory)
        lane, found = account.run(finish)
        lanes.append(lane)
        devices.extend(found)
        moved.update(account.traffic(costs))
    flatteners = list({id(one): one.flattener for one in kinds.of_rank}.values())
    schedule = staged.schedule
    result = Result(
        system=system.name,
        time_s=seconds(finish),
        peak_memory_bytes=max(device.peak_memory_bytes for device in devices),
        memory_capacity_bytes=system.memory_capacity_bytes,
        devices=tuple(sorted(devices, key=lambda device: device.id)),
        collectives=totals(moved),
        unmodelled_ops=unmodelled([row for one in flatteners for row in one.rows]),
        branches=tuple(dict.fromkeys(b for one in flatteners for b in one.branches)),
        lanes=tuple(lanes),
        engine=engine,
        timings_s=laps.times_s,
        pipeline=PipelineResult(
            schedule.kind,
            schedule.stages,
            schedule.chunks,
            schedule.micro_batches,
            _bubble(program, devices, seconds(finish)),
        ),
    )
    laps.end("account")
    return result


def _finish(state: RankState) -> int:
    """When the last of a rank's streams is free, and the last message there."""
    return max([*state.streams, *(message.end for message in state.received)])


def _bubble(program: Program, devices: list[DeviceResult], time_s: float) -> float:
    """Share of the step in which ranks neither compute nor communicate, on average."""
    idle_s = {device.id: device.idle_s for device in devices}
    firsts = [mesh.device_ids[0] for mesh in program.meshes]
    return sum(idle_s[first] for first in firsts) / (len(firsts) * time_s) if time_s > 0 else 0.0
