#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare the lower bounds of search over whole spaces of plans with every plan in them.

Usage: scripts/checks/check_bounds.py [--cuts N] [--spaces N]
Random layers: cuts into stages, each within its memory, against all cuts, also where stages are on
meshes of several kinds, which together have all devices; and of four spaces
(devices, layers) the best choice of mesh, micro-batch, stages, ZeRO, recomputation and cut against
all of them, by arithmetic of its own. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

import tvm_distir as td
from tvm_distir.hardware.auto_sharding.mesh_costs import MeshCosts
from tvm_distir.hardware.systems.clock import PICOSECONDS
from tvm_distir.planning.search.candidates import Candidate, Enumeration
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.estimates import ZERO, Estimator
from tvm_distir.planning.search.layers import Layers
from tvm_distir.planning.search.stage_partition import partition_stages, shared_out

SYSTEM = td.System.load("dgx-a100")
POLICIES = ("none", "full")
SPACES = ((16, 10, 32, (1, 2), 0.9), (24, 14, 48, (1, 2, 4), 0.5), (64, 21, 64, (1, 2), 0.3),
          (96, 20, 96, (1,), 0.4))  # fmt: skip
"""Devices, layers, batch, samples of a micro-batch, memory as a share of what is kept at most."""


def cuts(count: int) -> int:
    """Cuts within memory against every cut; how many differ."""
    rng, wrong, none = random.Random(0), 0, 0
    for _ in range(count):
        times = [rng.randint(1, 50) for _ in range(rng.randint(1, 9))]
        parts = rng.randint(1, 5)
        needs = [[rng.randint(0, 9) for _ in times] for _ in range(parts)]
        room = rng.randint(3, 40)
        result = partition_stages(times, parts, needs, room)
        fitting = [
            max(sum(times[a:b]) for a, b in pairs)
            for pairs in _ways(len(times), parts)
            if all(sum(row[a:b]) <= room for row, (a, b) in zip(needs, pairs, strict=True))
        ]
        none += not fitting
        best = None if result is None else max(sum(times[i] for i in group) for group in result)
        wrong += best != min(fitting, default=None)
    print(f"{count} cuts into stages, {none} without one that fits: {wrong} differ")
    return wrong


def shares(count: int) -> int:
    """Cuts into stages on meshes of several kinds against all of them; how many differ."""
    rng, wrong, none = random.Random(1), 0, 0
    for _ in range(count):
        layers, parts = rng.randint(3, 7), rng.randint(1, 3)
        sizes = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4))]
        devices = sum(rng.choice(sizes) for _ in range(parts))
        times = [[rng.randint(1, 50) for _ in range(layers)] for _ in sizes]
        needs = [[[rng.randint(0, 9) for _ in range(layers)] for _ in sizes] for _ in range(parts)]
        many, room = rng.randint(1, 6), rng.randint(3, 40)
        best = min(_steps(times, sizes, needs, devices, many, room), default=None)
        none += best is None
        result = shared_out(times, sizes, needs, devices, many, room)
        wrong += (None if result is None else result[0]) != best
        if result is not None:
            step, stages = result
            local = [sum(times[kind][i] for i in group) for group, kind in stages]
            whole = [i for group, _ in stages for i in group] == list(range(layers))
            used = sum(sizes[kind] for _, kind in stages)
            wrong += (many - 1) * max(local) + sum(local) != step or not whole or used != devices
    print(
        f"{count} cuts into stages with device counts, {none} without one that fits: {wrong} differ"
    )
    return wrong


def _steps(
    times: list[list[int]],
    sizes: list[int],
    needs: list[list[list[int]]],
    devices: int,
    many: int,
    room: int,
) -> Iterator[int]:
    """Time of the step of each way to cut layers, and to give their stages kinds of mesh."""
    count, parts = len(times[0]), len(needs)
    for ends in itertools.combinations(range(1, count), parts - 1):
        pairs = list(itertools.pairwise((0, *ends, count)))
        for kinds in itertools.product(range(len(sizes)), repeat=parts):
            remaining = [
                sum(row[k][a:b]) for row, k, (a, b) in zip(needs, kinds, pairs, strict=True)
            ]
            if sum(sizes[k] for k in kinds) == devices and max(remaining) <= room:
                local = [sum(times[k][a:b]) for k, (a, b) in zip(kinds, pairs, strict=True)]
                yield (many - 1) * max(local) + sum(local)


def _ways(count: int, parts: int) -> Iterator[list[tuple[int, int]]]:
    for way in itertools.combinations_with_replacement(range(count + 1), parts - 1):
        yield list(itertools.pairwise((0, *way, count)))


def layers(count: int, tp: int, samples: int, policy: str) -> Layers:
    """A table: layers are alike, the first and the last hold a vocabulary."""
    rng = np.random.default_rng([count, tp, samples, POLICIES.index(policy)])
    again = policy == "full"
    times = rng.integers(900, 1100, count) * 10**6 * samples // tp * (4 if again else 3)
    stashes = rng.integers(90, 110, count) * 10**6 * samples // tp // (9 if again else 1)
    weights = np.full(count, 2 * 10**8) // tp
    weights[[0, -1]] *= 3
    rows = (times, stashes, weights, weights, 2 * weights)
    return Layers(*[tuple(row.tolist()) for row in rows])


@cache
def every_cut(count: int, parts: int) -> npt.NDArray[np.int64]:
    """Where the parts end, all ways with no part empty, (ways, parts)."""
    ends = np.array(list(itertools.combinations(range(1, count), parts - 1)), np.int64)
    return np.hstack([ends.reshape(len(ends), parts - 1), np.full((len(ends), 1), count)])


@cache
def collectives(axes: tuple[tuple[str, int], ...]) -> MeshCosts:
    """Prices on a mesh."""
    return MeshCosts(SYSTEM, Candidate(axes).mesh.device_mesh())


def enumerated(single: Candidate, table: Layers, limit: int) -> tuple[float, int]:
    """Least time of all ways to do a candidate that fit, and how many ways there are."""
    count, ranks, many = len(table.times_ps), single.stages, single.micro_batches
    ends = every_cut(count, ranks)
    begins = np.hstack([np.zeros((len(ends), 1), np.int64), ends[:, :-1]])

    def sums(row: Sequence[int]) -> npt.NDArray[np.int64]:
        at = np.concatenate([[0], np.cumsum(row)])
        return at[ends] - at[begins]

    times = sums(table.times_ps)
    step = (many - 1) * times.max(1) + times.sum(1)
    mesh = dict(single.axes)
    dp, best = mesh.get("dp", 1), float("inf")
    ways = (1,) if dp == 1 else ZERO if single.schedule else (1, 3)
    weights = sum(table.weights_bytes) // ranks
    for zero in ways:
        fits = np.ones(len(ends), bool)
        for rank in range(ranks):
            each = np.array(table.stashes_bytes) * min(many, ranks - rank)
            each = each + np.array(table.weights_bytes) // (dp if zero == 3 else 1)
            each = each + np.array(table.sums_bytes) // (dp if zero >= 2 else 1)
            each = each + np.array(table.states_bytes) // dp
            fits &= sums(each.tolist())[:, rank] <= limit
        if not fits.any():
            continue
        least = int(step[fits].min())
        if dp > 1:
            price, axis = collectives(single.axes).collective_ps, list(mesh).index("dp")
            whole, part = price("all_gather", weights, axis), weights // dp
            reduced = price("reduce_scatter", part, axis)
            least = {
                1: least + price("all_reduce", weights, axis),
                2: max(least, many * reduced) + whole,
                3: max(least, many * (2 * whole + reduced)),
            }[zero]
        best = min(best, least / PICOSECONDS)
    return best, len(ends) * len(ways)


def space(devices: int, count: int, batch: int, samples: tuple[int, ...], share: float) -> int:
    """One space; whether its best differs."""
    rules = Constraints(("pp", "dp", "tp"), {"pp": count, "tp": 8}, micro_batches=samples)
    candidates = list(Enumeration(rules, devices, SYSTEM, batch, stages=True))
    limit = int(share * sum(map(sum, layers(count, 1, 1, "none")[1:])))
    outlooks = Estimator(SYSTEM, limit)
    ways, result, every = 0, (float("inf"), ""), (float("inf"), "")
    differ, began = 0, time.process_time()
    for each, policy in itertools.product(candidates, POLICIES):
        mesh = dict(each.axes)
        samples_each = max(1, batch // (mesh.get("dp", 1) * each.micro_batches))
        table = layers(count, mesh.get("tp", 1), samples_each, policy)
        outlook = outlooks.of(each, table)
        likely = outlook.time_s if outlook.peak_bytes <= limit else float("inf")
        least, more = enumerated(each, table, limit)
        ways, differ = ways + more, differ + (likely != least)
        key = replace(each, recompute=policy).key
        result, every = min(result, (likely, key)), min(every, (least, key))
    print(
        f"{devices} devices, {count} layers, {limit / 2**30:.1f} GiB: {len(candidates)} candidates "
        f"with {len(POLICIES)} policies, {ways} plans: best {every[1]}, {every[0]:.4f} s, "
        f"{'equal' if result == every else f'DIFFERENT: {result}'}; {differ} candidates differ; "
        f"{time.process_time() - began:.0f} s of CPU",
        flush=True,
    )
    return differ + (result != every)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cuts", type=int, default=300)
    parser.add_argument("--spaces", type=int, default=len(SPACES))
    options = parser.parse_args()
    wrong = cuts(options.cuts) + shares(options.cuts)
    wrong += sum(space(*each) for each in SPACES[: options.spaces])
    print(f"{wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
