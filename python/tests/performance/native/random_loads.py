# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Loads that units and messages put on links, written by hand and at random."""

from __future__ import annotations

import numpy as np

from tvm_distir.performance.event_loop.activities import ENDLESS, Loads


def loads_of(classes, capacity, slows=None, beside=1.0):
    """Loads from per class a list of pieces: end, speed, and a load per link."""
    rows = [piece for local in classes for piece in local]
    counts = [len(local) for local in classes]
    return Loads(
        np.array(capacity, float),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        np.array([end for end, _, _ in rows], float),
        np.array([speed for _, speed, _ in rows], float),
        np.concatenate(([0], np.cumsum([len(local) for *_, local in rows]))).astype(np.int64),
        np.array([link for *_, local in rows for link in local], np.int64),
        np.array([load for *_, local in rows for load in local.values()], float),
        np.full((len(classes), 2), -1, np.int64) if slows is None else np.array(slows, np.int64),
        beside,
    )


def no_loads(units):
    """Loads without contention."""
    return loads_of([[(ENDLESS, 1.0, {})]] * (len(units.steps) + len(units.edges)), [])


def random_loads(rng, units):
    """Pieces and loads that meet often."""
    count = len(units.steps) + len(units.edges)
    capacity = [rng.choice([1.0, 2.0, 3.5]) for _ in range(3)]
    classes, slows = [], []
    for _ in range(count):
        local, end = [], 0.0
        for last in (*[False] * rng.randint(0, 2), True):
            end = ENDLESS if last else end + rng.randint(1, 50)
            links = rng.sample(range(3), rng.randint(0, 2))
            load = {link: rng.uniform(0.1, 1.0) * capacity[link] for link in sorted(links)}
            local.append((end, rng.choice([1.0, 1.0, 0.9]), load))
        classes.append(local)
        slows.append([rng.randint(-1, len(units.program_begin) - 2) for _ in range(2)])
    return loads_of(classes, capacity, slows, rng.choice([1.0, 0.7]))
