# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Laws of physics that the prices of every shipped system obey, on 10,000 random shapes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tvm_distir.core.ir.operators.names import COLLECTIVES, TRANSFERS
from tvm_distir.core.ops.kernel_classes import KERNEL_CLASSES, VIEW
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_reader import system_names

NAMES = system_names()
SYSTEMS = [System.load(name) for name in NAMES]
CLASSES = [kind for kind in KERNEL_CLASSES if kind != VIEW]
DTYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn", "int8")
SHAPES = 10_000 // (len(NAMES) * len(CLASSES)) + 1
"""By system and kernel class; all of them together are 10,000 and more."""
LINE_GBPS = {
    "NVLink 2 through NVSwitch": 150.0,
    "NVLink 3 through NVSwitch": 300.0,
    "NVLink 4 through NVSwitch": 450.0,
    "NVLink 5 through NVSwitch": 900.0,
    "Infinity Fabric, all to all": 448.0,
    "Infinity Fabric 4, all to all": 537.6,
    "inter-chip interconnect, 3-D torus": 300.0,
    "inter-chip interconnect, 2-D torus": 400.0,
    "Ethernet of 200 Gb/s, all to all": 525.0,
    "Thunderbolt 5": 10.0,
    "PCIe gen 4 x16": 32.0,
    "PCIe gen 5 x16": 64.0,
    "shared memory": 40.0,
}
"""What a device sends inside a node at most, per direction, by data sheets; of shared memory what
two channels of DDR4-2666 carry."""


def kernels(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random FLOPs and bytes: products of sizes from 1 to 32768, and anything else."""
    rng = np.random.default_rng(seed)
    m, k, n = (2.0 ** rng.uniform(0, 15, (3, SHAPES))).astype(np.int64)
    flops, moved = 2 * m * k * n, 2 * (m * k + k * n + m * n)
    free = rng.random(SHAPES) < 0.3
    flops[free] = (2.0 ** rng.uniform(0, 50, SHAPES)).astype(np.int64)[free]
    moved[free] = (2.0 ** rng.uniform(0, 37, SHAPES)).astype(np.int64)[free]
    return flops.astype(float), moved.astype(float)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("system", SYSTEMS, ids=NAMES)
def test_no_kernel_is_faster_than_its_arithmetic_or_its_traffic(system: System, kind: str) -> None:
    flops, moved = kernels(CLASSES.index(kind) + 100 * NAMES.index(system.name))
    for dtype in DTYPES:
        rate = system.rate(kind, dtype)
        whole = rate.spent_s(flops, moved).total
        arithmetic = flops / system.peak_flops_per_s(dtype, kind)
        traffic = moved / (system.device.memory_bandwidth_GBps * 1e9)
        assert (whole >= np.maximum(arithmetic, traffic) * (1 - 1e-12)).all()
        for more in (2, 1.001):
            assert (rate.spent_s(flops * more, moved).total >= whole).all()
            assert (rate.spent_s(flops, moved * more).total >= whole).all()
    single = system.roofline(int(flops[0]), int(moved[0]), kind, DTYPES[-1])
    assert single.time_s == pytest.approx(whole[0], rel=1e-12)


def test_a_product_of_one_row_takes_as_long_as_its_weights() -> None:
    """(1, 8192) by (8192, 28672) in bfloat16 on an H100, whose memory gives 3,350 GB/s."""
    moved = 2 * (8192 + 8192 * 28672 + 28672)
    system = System.load("dgx-h100-megatron")
    single = system.roofline(2 * 8192 * 28672, moved, "matmul", "bfloat16")
    assert single.time_s > moved / 3350e9 > 140e-6
    assert single.bound_by == "memory"


def groups(system: System, rng: random.Random) -> list[int]:
    """Devices of a group: inside a node, whole nodes, or as many of each of some nodes."""
    per_node = system.intra_node.devices_per_node
    nodes, members = rng.choice([1, 1, 2, 3, 8, 32]), rng.randint(1, per_node)
    stride = rng.randint(1, per_node // members)
    return [per_node * node + stride * k for node in range(nodes) for k in range(members)]


def crossing_bytes(kind: str, payload: int, ranks: int, members: int) -> float:
    """What must leave a node with so many members, at least; of a rank alone on its node all."""
    outside = (ranks - members) / ranks
    if kind == "all_reduce":  # each node adds its term to, and gets, what the others have
        return 2 * payload * outside
    if kind == "reduce_scatter":
        return payload * ranks * outside
    if kind == "all_gather":
        return payload * outside
    if kind == "all_to_all":
        return payload * members * outside
    return float(payload)


@pytest.mark.parametrize("system", SYSTEMS, ids=NAMES)
def test_no_collective_is_faster_than_its_links(system: System) -> None:
    rng = random.Random(NAMES.index(system.name))
    near, far = system.intra_node, system.inter_node
    per_node = near.devices_per_node
    near_rate = LINE_GBPS[near.name] * 1e9
    for _ in range(400):
        ids = groups(system, rng)
        members = sum(each < per_node for each in ids)
        payload = int(2 ** rng.uniform(0, 34))
        kind = rng.choice([*COLLECTIVES, *(TRANSFERS if len(ids) == 2 else ())])
        time_s = system.collective_time_s(kind, payload, ids)
        if len(ids) == 1:
            assert time_s == 0
            continue
        if len(ids) == members:
            sent = payload * ring_share(kind, members)
            assert time_s >= sent / near_rate, (kind, payload, ids)
            continue
        adapters = far.nics_per_node * far.bandwidth_per_nic_GBps * 1e9
        least = crossing_bytes(kind, payload, len(ids), members) / adapters
        if kind in ("collective_permute", *TRANSFERS):  # a device drives its own adapters only
            local = -(-far.nics_per_node // per_node) * far.bandwidth_per_nic_GBps * 1e9
            least = max(least, payload / local)
        assert time_s >= least * (1 - 1e-9), (kind, payload, ids)
        sharing = rng.randint(1, per_node)
        assert system.collective_time_s(kind, payload, ids, sharing) >= time_s


def ring_share(kind: str, n: int) -> float:
    """What each of n devices sends at least, by the payload."""
    passes = {"all_reduce": 2 * (n - 1) / n, "reduce_scatter": n - 1}
    return passes.get(kind, (n - 1) / n if kind in ("all_gather", "all_to_all") else 1)


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("system", SYSTEMS, ids=NAMES)
def test_more_bytes_and_more_devices_take_no_less(system: System, kind: str) -> None:
    per_node = system.intra_node.devices_per_node
    sizes = np.array([0, 1, 10**3, 10**5, 10**7, 10**9, 10**11])
    inside = [range(n) for n in range(1, per_node + 1)]
    across = [range(per_node * n) for n in (2, 3, 4, 6, 8, 16, 32)]
    apart = [range(0, per_node * n, per_node) for n in (2, 3, 4, 6, 8, 16, 32)]
    for chain in ([*inside, *across], apart):
        times = np.array(
            [[system.collective_time_s(kind, int(b), ids) for b in sizes] for ids in chain]
        )
        assert (np.diff(times, axis=1) >= 0).all()
        assert (np.diff(times, axis=0) >= -1e-12 * times[1:]).all(), kind


@pytest.mark.parametrize("system", SYSTEMS, ids=NAMES)
def test_equal_work_takes_equally_long(system: System) -> None:
    """In any order, on any nodes, alone or in an array."""
    rng = random.Random(NAMES.index(system.name))
    per_node = system.intra_node.devices_per_node
    for _ in range(200):
        ids, kind = groups(system, rng), rng.choice(list(COLLECTIVES))
        payload = rng.randint(0, 10**9)
        time_s = system.collective_time_s(kind, payload, ids)
        nodes = range(40) if system.outer_tiers else rng.sample(range(1000), 40)
        renamed = [per_node * nodes[each // per_node] + each % per_node for each in ids]
        rng.shuffle(renamed)
        assert system.collective_time_s(kind, payload, renamed) == time_s
        where = next(iter(system.layout([renamed]).kinds))
        many = system.spread_time_s(kind, np.array([payload, 2 * payload]), where, 1)
        assert many[0] == pytest.approx(time_s, rel=1e-12)
    order = np.random.default_rng(0).permutation(SHAPES)
    flops, moved = kernels(7)
    for kind in CLASSES:
        rate = system.rate(kind, "float16")
        whole = rate.spent_s(flops, moved).total
        assert (rate.spent_s(flops[order], moved[order]).total == whole[order]).all()
