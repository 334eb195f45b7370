# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Costs on a system, against arithmetic written out here with round numbers."""

from __future__ import annotations

import csv
import random
from fractions import Fraction

import pytest

from tvm_distir.core.ir.operators.names import COLLECTIVES, TRANSFERS
from tvm_distir.hardware.systems.network import layout_of, nic_sharing, spread
from tvm_distir.hardware.systems.system import System

# 100 TFLOP/s in float16, 10 elsewhere, 1 TB/s; 4 devices per node, 100 GB/s inside;
# 2 adapters of 10 GB/s. Efficiencies 0.5 and 0.8.
ROUND = {
    "schema_version": 1,
    "name": "round",
    "device": {
        "name": "d",
        "memory_capacity_GiB": 1,
        "memory_bandwidth_GBps": 1000,
        "launch_floor_us": 5,
        "matmul_TFLOPs": {"float16": 100, "float8": 200, "default": 10},
        "vector_TFLOPs": {"float32": 2, "default": 1},
        "efficiency": {
            kind: {"flops": 0.5, "bandwidth": 0.8}
            for kind in ("matmul", "conv", "attention", "memory", "gather")
        },
    },
    "intra_node": {
        "name": "n", "devices_per_node": 4, "bandwidth_GBps": 100, "latency_us": 2, "setup_us": 10,
    },
    "inter_node": {
        "name": "n", "nics_per_node": 2, "bandwidth_per_nic_GBps": 10, "latency_us": 3,
        "setup_us": 20,
    },
}  # fmt: skip
SYSTEM = System.from_dict(ROUND)
US = 1e-6


@pytest.mark.parametrize(
    ("flops", "moved", "dtype", "expected_us", "bound_by"),
    [
        (10**9, 10**6, "float16", 20.0, "compute"),  # 1e9 / 50e12
        (10**9, 10**6, "bfloat16", 200.0, "compute"),  # the default peak, 5e12
        (10**9, 10**6, "float8_e4m3fn", 10.0, "compute"),  # its family, 100e12
        (10**3, 8 * 10**6, "float16", 10.0, "memory"),  # 8e6 / 8e11
        (10**3, 10**3, "float16", 5.0, "launch"),
        (0, 0, "float16", 5.0, "launch"),
    ],
)
def test_roofline(flops, moved, dtype, expected_us, bound_by):
    result = SYSTEM.roofline(flops, moved, "matmul", dtype)
    assert result.time_s == pytest.approx(expected_us * US, rel=1e-12)
    assert result.bound_by == bound_by


def test_vector_kernels_run_at_the_vector_peak():
    # 1e9 flops at half of 2 TFLOP/s
    assert SYSTEM.roofline(10**9, 16, "memory", "float32").time_s == 1e-3
    assert SYSTEM.roofline(10**9, 16, "memory", "int64").time_s == 2e-3


def test_views_are_free():
    assert SYSTEM.roofline(0, 2 * 10**9, "view", "float32").time_s == 0.0


def seconds(kind, payload, ranks, sharing=1):
    return SYSTEM.collective_time_s(kind, payload, ranks, sharing)


def test_inside_a_node():
    b = 4_000_000
    # setup 10, per step 2, wire bytes at 100 GB/s
    assert seconds("all_reduce", b, range(4)) == pytest.approx(US * (10 + 6 * 2 + 60))
    assert seconds("all_gather", b, range(4)) == pytest.approx(US * (10 + 3 * 2 + 30))
    assert seconds("reduce_scatter", b // 4, range(4)) == pytest.approx(US * (10 + 3 * 2 + 30))
    assert seconds("all_to_all", b, range(4)) == pytest.approx(US * (10 + 3 * 2 + 30))
    assert seconds("collective_permute", b, range(4)) == pytest.approx(US * (10 + 2 + 40))
    assert seconds("send", b, (1, 2)) == pytest.approx(US * (10 + 2 + 40))
    assert seconds("all_reduce", b, (3,)) == 0.0


def test_between_nodes():
    b = 8_000_000
    alpha = 10 + 20
    # Two nodes, all 4 devices of each: both adapters, 20 GB/s, are the slowest link.
    wire = 2 * Fraction(7, 8) * b
    assert seconds("all_reduce", b, range(8)) == pytest.approx(
        US * (alpha + 14 * 3 + float(wire) / 20e3)
    )
    # One device per node drives one adapter: 10 GB/s.
    assert seconds("all_reduce", b, (0, 4)) == pytest.approx(US * (alpha + 2 * 3 + 800))
    # Four such groups at once share the two adapters: 5 GB/s each.
    groups = [(i, 4 + i) for i in range(4)]
    assert SYSTEM.layout(groups).sharing == 4
    assert seconds("all_reduce", b, (0, 4), 4) == pytest.approx(US * (alpha + 2 * 3 + 1600))
    # Groups inside nodes share nothing.
    assert SYSTEM.layout([range(4), range(4, 8)]).sharing == 1


def test_all_to_all_between_nodes():
    """8 ranks on 2 nodes: of each rank's 8 blocks 4 leave the node, 3 stay, 1 is its own."""
    block = 1_000_000
    leaving = 4 * 4 * block
    assert seconds("all_to_all", 8 * block, range(8)) == pytest.approx(
        US * (30 + 7 * 3 + leaving / 20e3)
    )


def test_monotone():
    for kind in (*COLLECTIVES, *TRANSFERS):
        for ranks in ((0, 1), range(8), (0, 4), range(16)):
            times = [seconds(kind, size, ranks) for size in (0, 1, 10**6, 10**9)]
            assert times == sorted(times)
            assert times[0] > 0
            assert seconds(kind, 10**6, ranks, 4) >= seconds(kind, 10**6, ranks, 1)


def test_measured_all_reduces_on_a100():
    """A few points of vTrain's NCCL tables (A100, out of place): within 20%."""
    table = """n,bytes,us
2,16777216,131.9
2,1073741824,5442.8
4,4194304,77.32
4,536870912,3720.0
"""
    system = System.load("dgx-a100")
    rows = list(csv.DictReader(table.splitlines()))
    for row in rows:
        result = system.collective_time_s("all_reduce", int(row["bytes"]), range(int(row["n"])))
        assert result == pytest.approx(float(row["us"]) * US, rel=0.2)


def test_a100_gemm_is_near_its_peak():
    """4096^3 in float16: 2 * 4096^3 / 312 TFLOP/s = 0.44 ms at the peak."""
    system = System.load("dgx-a100")
    size = 4096 * 4096 * 2
    elapsed = system.roofline(2 * 4096**3, 3 * size, "matmul", "float16").time_s
    assert 0.44e-3 < elapsed < 0.6e-3


def test_layouts_of_many_groups_are_those_of_each():
    rng = random.Random(5)
    for _ in range(300):
        size, count, per_node = rng.randint(1, 8), rng.randint(1, 40), rng.choice([1, 2, 4, 8])
        ids = rng.sample(range(400), size * count)
        groups = [ids[k : k + size] for k in range(0, len(ids), size)]
        result = layout_of(groups, per_node)
        each = tuple(spread(group, per_node) for group in groups)
        assert (result.spreads, result.kinds) == (each, frozenset(each))
        assert result.sharing == nic_sharing(groups, per_node)
