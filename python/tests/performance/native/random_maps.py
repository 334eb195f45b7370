# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random hierarchical functions and pipelines of them, and their flat task graphs.

The graph of tasks has every op of every call of every unit; :func:`~.event_loop.schedule.schedule`
walks it without knowing of functions. Host, compute, communication and sends are streams of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tvm_distir.performance.event_loop.function_summaries import (
    AFTER,
    APART,
    COMM_PORT,
    HOLDS,
    SYNC,
    FunctionTable,
)
from tvm_distir.performance.event_loop.tasks import Tasks

STREAMS = 4  # compute, communication, host, sends
APART_STREAMS = 100  # behind those of all ranks


@dataclass
class Functions:
    """A table, and the same as lists."""

    table: FunctionTable = field(default_factory=FunctionTable)
    all: list = field(default_factory=list)

    def add(self, params, values, ops, results):
        """Ops: (stream, flags, duration, issue, callee, ins, outs); returns the number."""
        self.table.functions += [params, values, len(ops), len(results)]
        for *head, ins, outs in ops:
            self.table.ops += [*head, len(ins), len(outs)]
            self.table.ins += ins
            self.table.outs += outs
        self.table.results += results
        self.all.append((params, values, ops, results))
        return len(self.all) - 1


def random_functions(rng: random.Random, depth: int, host: bool, width: int = 12):
    """Functions that call earlier ones, the last of them more than once."""
    created = Functions()
    for level in range(depth):
        for _ in range(rng.randint(1, 3)):
            params = rng.randint(0, 4)
            random_function(rng, created, params, rng.randint(0, 3), host, width)
    return created


def random_function(rng, created, params, results, host, width):
    """Add a function with these numbers of parameters and results."""
    values, ops = params, []
    seen = [-1, *range(params)]
    for _ in range(rng.randint(1, width)):
        if created.all and rng.random() < 0.3:
            callee = rng.randrange(len(created.all))
            inner, _, _, inputs = created.all[callee]
            ins = [rng.choice(seen) for _ in range(inner)]
            outs = list(range(values, values + len(inputs)))
            ops.append((0, 0, 0, 0, callee, ins, outs))
        else:
            stream = rng.choice([0, 0, 0, COMM_PORT])
            flags = rng.choice([0, 0, AFTER, AFTER | HOLDS, AFTER | APART]) if stream else 0
            issue = rng.randint(0, 30) if host else 0
            flags |= SYNC if host and rng.random() < 0.1 else 0
            ins = [rng.choice(seen) for _ in range(rng.randint(0, 3))]
            outs = list(range(values, values + rng.randint(0, 2)))
            ops.append((stream, flags, rng.randint(0, 50), issue, -1, ins, outs))
        values += len(outs)
        seen += outs
    return created.add(params, values, ops, [rng.choice(seen) for _ in range(results)])


class Flat:
    """Tasks of ranks, one op of one call after the other."""

    def __init__(self):
        self.duration, self.stream, self.waits = [], [], []
        self.ops = []  # tasks that are ops, in order of issue
        self.host, self.last, self.blocker = {}, {}, {}

    def task(self, duration, stream, waits):
        """Add a task that waits for others (-1: for nothing)."""
        number = len(self.duration)
        self.duration.append(duration)
        self.stream.append(stream)
        self.waits += [(number, other) for other in waits if other >= 0]
        return number

    def call(self, functions, number, args, rank=0):
        """Run a function on a rank; returns the tasks of its results."""
        params, _, ops, results = functions.all[number]
        value = {-1: -1, **dict(zip(range(params), args, strict=True))}
        for stream, flags, duration, issue, callee, ins, outs in ops:
            inputs = [value[k] for k in ins]
            if callee >= 0:
                value |= zip(outs, self.call(functions, callee, inputs, rank), strict=True)
                continue
            issued = self.task(issue, STREAMS * rank + 2, [self.host.get(rank, -1)])
            if not stream or flags & (AFTER | HOLDS):
                inputs += [self.blocker.get(rank, -1)]
            if flags & (AFTER | HOLDS):
                inputs += [self.last.get(rank, -1)]
            queue = STREAMS * rank + stream
            if flags & APART:  # a separate stream
                queue = APART_STREAMS + len(self.ops)
            task = self.task(duration, queue, [issued, *inputs])
            self.ops.append(task)
            if not stream:
                self.last[rank] = task
            if flags & HOLDS:
                self.blocker[rank] = task
            if flags & SYNC:
                self.host[rank] = task
            value |= dict.fromkeys(outs, task)
        return [value[k] for k in results]

    def tasks(self):
        """The graph."""
        return Tasks.from_pairs(self.duration, self.stream, self.waits)
