# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Schedule tasks in plain Python: slow, simple, and equal to the native event loop."""

from __future__ import annotations

import numpy as np

from .tasks import Ints, Tasks

_LARGEST = (1 << 63) - 1


def schedule_tasks(tasks: Tasks) -> tuple[Ints, Ints, int]:
    """Schedule tasks by asking again and again which one could start.

    Each stream holds a queue in order of issue. In every round, whatever stands at the head of
    its queue (all members of a group at theirs) with all dependencies done is scheduled.

    Returns
    -------
    start, end : int64 arrays (n,)
        -1 for tasks that never start.
    done : int
        How many tasks were scheduled; -1 when an end does not fit in 64 bits.
    """
    count = tasks.size
    start, end = [-1] * count, [-1] * count
    queues: dict[int, list[int]] = {}
    members: dict[int, list[int]] = {}
    for task in range(count):
        if tasks.stream[task] >= 0:
            queues.setdefault(int(tasks.stream[task]), []).append(task)
        if tasks.group[task] >= 0:
            members.setdefault(int(tasks.group[task]), []).append(task)
    free_at = dict.fromkeys(queues, 0)

    def ready_at(task: int) -> int | None:
        """Return when the task could start; None when something before it is not done."""
        times = [0]
        stream = int(tasks.stream[task])
        if stream >= 0:
            if queues[stream][0] != task:
                return None
            times.append(free_at[stream])
        for dep in tasks.dep[tasks.dep_begin[task] : tasks.dep_begin[task + 1]]:
            if end[dep] < 0:
                return None
            times.append(end[dep])
        return max(times)

    waiting = list(range(count))
    moved = True
    while moved:
        moved = False
        for task in waiting:
            if end[task] >= 0:
                continue
            together = members.get(int(tasks.group[task]), [task])
            times = [ready_at(member) for member in together]
            known = [time for time in times if time is not None]
            if len(known) < len(times):
                continue
            finish = max(known) + max(int(tasks.duration[member]) for member in together)
            if finish > _LARGEST:
                return _array(start), _array(end), -1
            for member in together:
                start[member], end[member] = max(known), finish
                stream = int(tasks.stream[member])
                if stream >= 0:
                    queues[stream].pop(0)
                    free_at[stream] = finish
            moved = True
        waiting = [task for task in waiting if end[task] < 0]
    return _array(start), _array(end), count - len(waiting)


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
