# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute when each task of a graph starts and ends: the simulator's event loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_distir.support import InternalError, SimulationError, load_library

from .tasks import Ints, Tasks


def schedule(tasks: Tasks, names: Sequence[str] | None = None) -> tuple[Ints, Ints]:
    """Schedule all tasks as early as possible.

    Parameters
    ----------
    tasks : Tasks
    names : sequence of str, optional
        Names of the tasks, for errors.

    Returns
    -------
    start, end : int64 arrays (n,)
        The times, in the unit of the durations.

    Raises
    ------
    SimulationError
        DIST0720 when tasks wait for each other forever, DIST0721 when the time does not fit in
        64 bits.
    DependencyError
        DIST0110 for a native library that cannot be used.
    """
    start, end, done = _schedule(tasks)
    if done < 0:
        problem = "the simulated time does not fit in 64-bit picoseconds (106 days)"
        remedy = "Check the numbers of the system and the sizes of the program."
        raise SimulationError("DIST0721", problem, location="schedule", remedy=remedy)
    if done < tasks.size:
        shown = [names[t] if names is not None else f"task {t}" for t in find_cycle(tasks, start)]
        if len(shown) > 8:
            shown = [*shown[:7], f"... {len(shown) - 8} more", shown[-1]]
        problem = (
            f"{tasks.size - done} of {tasks.size} tasks cannot start, because they wait for each "
            f"other: {' <- '.join(shown)}"
        )
        remedy = "Use the same order on all devices of a collective and at both ends of a transfer."
        raise SimulationError("DIST0720", problem, location="schedule", remedy=remedy)
    return start, end


def _schedule(tasks: Tasks) -> tuple[Ints, Ints, int]:
    import tvm_ffi

    start, end = np.empty(tasks.size, np.int64), np.empty(tasks.size, np.int64)
    arguments = (*vars(tasks).values(), start, end)
    done = load_library()["schedule"](
        *(x if isinstance(x, int) else tvm_ffi.from_dlpack(x) for x in arguments)
    )
    return start, end, int(done)


def find_cycle(tasks: Tasks, start: Ints) -> list[int]:
    """Return the tasks of a cycle of waits among those that never started (``start`` is -1).

    Each entry waits for its successor, the last for the first. A task of a group also waits
    for what the other members wait for, so neighbours may be members of the same group.
    """
    blocked = start < 0
    before: dict[int, int] = {}
    last: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for t in range(tasks.size):
        stream, group = int(tasks.stream[t]), int(tasks.group[t])
        if stream >= 0:
            if stream in last:
                before[t] = last[stream]
            last[stream] = t
        if group >= 0:
            members.setdefault(group, []).append(t)

    def waits_for(task: int) -> tuple[int, int]:
        """Return a blocked task that ``task``'s node waits for, and the member that waits."""
        for member in members.get(int(tasks.group[task]), [task]):
            deps = tasks.dep[tasks.dep_begin[member] : tasks.dep_begin[member + 1]]
            for dep in (*(int(d) for d in deps), before.get(member, -1)):
                if dep >= 0 and blocked[dep]:
                    return member, dep
        raise InternalError("DIST0901", f"task {task} is blocked by nothing", remedy="Report it.")

    def node(task: int) -> tuple[int, int]:
        group = int(tasks.group[task])
        return (0, group) if group >= 0 else (1, task)

    path: list[int] = []
    seen: dict[tuple[int, int], int] = {}
    here = int(np.flatnonzero(blocked)[0])
    while node(here) not in seen:
        seen[node(here)] = len(path)
        member, dep = waits_for(here)
        if member != here:
            path.append(here)
        path.append(member)
        here = dep
    return path[seen[node(here)] :]
