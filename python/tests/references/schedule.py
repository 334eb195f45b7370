# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Schedule tasks in plain Python: slow, simple, and equal to the native event loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_distir.performance.event_loop.tasks import Ints, Tasks

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
    return _Queues(tasks).run()


class _Queues:
    """Tasks in the queues of their streams, and in their groups."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.start, self.end = [-1] * tasks.size, [-1] * tasks.size
        self.queues: dict[int, list[int]] = {}
        self.members: dict[int, list[int]] = {}
        for of, numbers in ((self.queues, tasks.stream), (self.members, tasks.group)):
            for task, number in enumerate(numbers.tolist()):
                if number >= 0:
                    of.setdefault(number, []).append(task)
        self.free_at = dict.fromkeys(self.queues, 0)

    def run(self) -> tuple[Ints, Ints, int]:
        """Schedule all tasks that can start."""
        pending, moved = list(range(self.tasks.size)), True
        while moved:
            moved = False
            for task in pending:
                together = self.members.get(int(self.tasks.group[task]), [task])
                ready = self._ready_at(together) if self.end[task] < 0 else None
                if ready is None:
                    continue
                finish = ready + max(int(self.tasks.duration[member]) for member in together)
                if finish > _LARGEST:
                    return _array(self.start), _array(self.end), -1
                self._put_in_turn(together, ready, finish)
                moved = True
            pending = [task for task in pending if self.end[task] < 0]
        return _array(self.start), _array(self.end), self.tasks.size - len(pending)

    def _ready_at(self, together: Sequence[int]) -> int | None:
        """Return when tasks could start; None when something before them is not done."""
        times, tasks = [0], self.tasks
        for task in together:
            stream = int(tasks.stream[task])
            deps = tasks.dep[tasks.dep_begin[task] : tasks.dep_begin[task + 1]]
            ends = [self.end[dep] for dep in deps]
            if min(ends, default=0) < 0 or (stream >= 0 and self.queues[stream][0] != task):
                return None
            times += [*ends, self.free_at.get(stream, 0)]
        return max(times)

    def _put_in_turn(self, together: Sequence[int], start: int, finish: int) -> None:
        for task in together:
            self.start[task], self.end[task] = start, finish
            stream = int(self.tasks.stream[task])
            if stream >= 0:
                self.queues[stream].pop(0)
                self.free_at[stream] = finish


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
