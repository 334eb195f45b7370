# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compares starts of random functions and pipelines with those of their flat task graphs."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from tests.performance.native.random_loads import no_loads, random_loads
from tests.performance.native.random_maps import Flat, random_functions
from tests.performance.native.random_pipelines import Pipeline, starts_of
from tests.references import KERNELS, using
from tvm_distir.performance.event_loop.contention import run_contended
from tvm_distir.performance.event_loop.function_summaries import (
    NEVER,
    STREAM_PORTS,
    FunctionSummaries,
)
from tvm_distir.performance.event_loop.schedule import schedule

MOST = 1500
"""Ops up to which the plain reference is asked as well."""


def kernels_for(flat: Flat) -> tuple[str, ...]:
    """Which kernels are asked."""
    return KERNELS if len(flat.ops) < MOST else ("native",)


def differing_functions(seeds: Iterable[int]) -> tuple[int, list[str]]:
    """Random hierarchical functions, every second with a host: their number, what differs."""
    wrong, count = [], 0
    for seed in seeds:
        rng = random.Random(seed)
        created = random_functions(rng, rng.randint(1, 4), seed % 2 == 1)
        last, flat = len(created.all) - 1, Flat()
        flat.call(created, last, [-1] * created.all[last][0])
        expected = np.array(schedule(flat.tasks())[0])[flat.ops]
        for kernels in kernels_for(flat):
            with using(kernels):
                maps = FunctionSummaries(created.table)
                head = np.zeros(STREAM_PORTS, np.int64)
                times = np.concatenate((head, np.full(len(maps.ports(last)), NEVER)))
                if not np.array_equal(maps.expand(last, times[None])[0], expected):
                    wrong.append(f"function {seed}, {kernels}")
        count += 1
    return count, wrong


def differing_pipelines(seeds: Iterable[int]) -> tuple[int, list[str]]:
    """Random pipelines, every third with a host: their number, what differs."""
    wrong, count = [], 0
    for seed in seeds:
        pipeline = Pipeline(random.Random(seed), seed % 3 == 2)
        flat, tasks = pipeline.flat()
        start, _ = schedule(flat.tasks())
        expected = [start[local].tolist() for local in tasks]
        for kernels in kernels_for(flat):
            with using(kernels):
                maps = FunctionSummaries(pipeline.functions.table)
                if starts_of(maps, pipeline.units(maps)) != expected:
                    wrong.append(f"pipeline {seed} ({pipeline.schedule.kind}), {kernels}")
        count += 1
    return count, wrong


def differing_meetings(seeds: Iterable[int]) -> tuple[int, list[str]]:
    """Random pipelines on links that are often full: their number, what differs.

    Where nothing loads a link all is as without; kernel and reference are equal event by event.
    """
    wrong, count = [], 0
    for seed in seeds:
        pipeline, result = Pipeline(random.Random(seed), seed % 3 == 2), []
        for kernels in KERNELS:
            with using(kernels):
                maps = FunctionSummaries(pipeline.functions.table)
                units = pipeline.units(maps)
                plain, alone = maps.run(units), run_contended(maps, units, no_loads(units))
                names = ("times", "finish", "sent", "position")
                same = all(np.array_equal(getattr(alone.ran, n), getattr(plain, n)) for n in names)
                if not same or len(alone.clock):
                    wrong.append(f"meeting {seed}, {kernels}, alone")
                met = run_contended(maps, units, random_loads(random.Random(seed), units))
                result.append((met.ran.finish, met.ran.sent, met.ended, met.clock_begin, met.clock))
        if not all(np.array_equal(*both) for both in zip(*result, strict=True)):
            wrong.append(f"meeting {seed} ({pipeline.schedule.kind})")
        count += 1
    return count, wrong
