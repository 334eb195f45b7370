# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs and bytes of measured kernels, counted one by one, and weights of costs."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from tvm import ir, relax

from tests.hardware.systems.expert_rows import work_rows
from tests.plain_systems import PLAIN_A100
from tvm_distir.hardware.cost_weights import costs_of_axes, costs_of_system, main_dtype
from tvm_distir.hardware.systems.collective_algorithms import TIMED
from tvm_distir.hardware.systems.expert_kernels import SERVED_CAPACITY, expert_work
from tvm_distir.hardware.systems.kernel_tables import work_of
from tvm_distir.hardware.systems.network_reader import read_links
from tvm_distir.hardware.systems.system import System


@pytest.mark.parametrize("element_bytes", [1.0, 2.0])
def test_products_are_counted(element_bytes: float) -> None:
    m, n, k = 3, 5, 7
    flops = sum(2 for _ in itertools.product(range(m), range(n), range(k)))
    moved = element_bytes * (m * k + k * n) + 2 * (m * n)
    got = work_of("matmul", np.array([[m, n, k]], float), element_bytes)
    assert [float(x[0]) for x in got] == [flops, moved]


@pytest.mark.parametrize("sizes", [(2, 3, 7, 4, 2, 5), (1, 1, 9, 6, 6, 4), (3, 8, 8, 2, 1, 3)])
@pytest.mark.parametrize("element_bytes", [1.0, 2.0])
def test_causal_attention_is_counted(sizes: tuple[int, ...], element_bytes: float) -> None:
    """Each new token looks at those before it and itself; two products of the width of a head.

    Keys and values are read once per group of heads, queries and results have two bytes.
    """
    batch, new, past, heads, kv_heads, width = sizes
    flops = 0
    for _, token, _ in itertools.product(range(batch), range(new), range(heads)):
        flops += 2 * 2 * width * (past - new + token + 1)
    cache = sum(2 * width for _ in itertools.product(range(batch), range(past), range(kv_heads)))
    ends = sum(2 * 2 * width for _ in itertools.product(range(batch), range(new), range(heads)))
    got = work_of("attention", np.array([sizes], float), element_bytes)
    assert [float(x[0]) for x in got] == [flops, cache * element_bytes + ends]


@pytest.mark.parametrize(("local", "top_k", "experts"), [(8, 2, 8), (4, 1, 16), (16, 6, 64)])
def test_rows_of_experts_are_slots_of_those_that_work(local: int, top_k: int, experts: int) -> None:
    """Between one and all experts of the device, as many as tokens hit on average, rounded up."""
    before = 0.0
    for tokens in (1, 2, 5, 16, 100, 1000):
        slots = min(tokens, max(1, math.ceil(SERVED_CAPACITY * tokens * top_k / experts)))
        missed = (1 - top_k / experts) ** tokens
        working = min(local, max(1, math.ceil(local * (1 - missed) - 1e-9)))
        rows = work_rows(tokens, local, top_k, experts)
        assert rows == working * slots and slots <= rows <= local * slots
        assert rows >= before
        before = rows


def test_the_work_of_experts_is_that_of_their_tokens() -> None:
    """With many tokens all experts work: three products per pair, and all of the matrices."""
    tokens, local, first, second, top_k, experts = 4096, 8, 64, 128, 2, 8
    rows = work_rows(tokens, local, top_k, experts)
    sizes = np.array([[rows, local, first, second, top_k, experts]], float)
    flops, moved = (float(x[0]) for x in expert_work(sizes, 2.0))
    pairs = tokens * top_k
    assert flops == pytest.approx(2 * 3 * pairs * first * second, rel=0.01)
    weights = 3 * local * first * second * 2.0
    assert weights < moved == pytest.approx(weights + 5 * pairs * (first + second), rel=0.01)


def _module(*leaves: tuple[tuple[int, ...], str]) -> ir.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(list(s), d)) for i, (s, d) in enumerate(leaves)]
    with builder.function("main", params):
        builder.emit_func_output(params[0])
    return builder.get()


def test_the_main_type_has_most_bytes_of_floats() -> None:
    half, full, index = ((8, 8), "float16"), ((8, 6), "float32"), ((99, 99), "int64")
    assert main_dtype(_module(half, full, index)) == "float32"  # 128 bytes against 192
    assert main_dtype(_module(half, half, full, index)) == "float16"
    assert main_dtype(_module(((9,), "bfloat16"), index)) == "bfloat16"
    assert main_dtype(_module(index)) == "float32"


def test_weights_of_costs_are_in_proportion_to_times_and_bounded() -> None:
    """A byte of the links is the unit; the weight of a FLOP is one at least."""
    system = System.load(PLAIN_A100)
    groups = [list(range(8))]
    costs = costs_of_axes(system, "float16", [groups])
    assert 1024 <= costs.wire <= 1 << 20 and min(costs.memory, costs.flop, costs.launch) >= 1
    layout = system.layout(groups)
    (where,) = layout.kinds
    once, twice, empty = (
        system.spread_time_s("all_gather", size, where, layout.sharing)
        for size in (1 << 30, 2 << 30, 0)
    )
    sent_s = (twice - once) / ((1 << 30) * 7 / 8)
    memory_s = system.roofline(0, 2 << 30, "memory", "float16").time_s
    memory_s -= system.roofline(0, 1 << 30, "memory", "float16").time_s
    assert costs.memory / costs.wire == pytest.approx(memory_s / (1 << 30) / sent_s, rel=0.02)
    assert costs.launch / costs.wire == pytest.approx(empty / sent_s, rel=0.02)
    assert costs_of_axes(system, "float16", [[[0]]]) == costs_of_system(system, "float16")


def test_the_unit_of_costs_is_bounded_however_cheap_arithmetic_is() -> None:
    data = json.loads(Path(PLAIN_A100).read_text())
    data["device"]["matmul_TFLOPs"] = {"default": 1e9}
    costs = costs_of_system(System.from_dict(data), "float16")
    assert costs.wire == 1 << 20 and costs.flop == 1


@pytest.mark.parametrize("rails", [None, 1, 2, 4])
def test_rails_share_what_the_devices_of_a_node_send(rails: int | None) -> None:
    """Whatever their number is, they have the bandwidth of all devices together."""
    curves = [
        {"algorithm": "direct" if kind == "all_to_all" else "ring", "kind": kind, "setup_us": 1.0,
         "hop_us": 1.0, "bandwidth_GBps": 90.0}
        for kind in TIMED
    ]  # fmt: skip
    node = {"name": "node", "devices": 4, "bandwidth_GBps": 100.0, "curves": {"nccl": curves}}
    leaf = {"name": "leaf", "bandwidth_GBps": 10.0, **({} if rails is None else {"rails": rails})}
    links = read_links({"tiers": [node, leaf]}, "test")
    outer = links.inter_node
    assert outer.nics_per_node == (rails or 4)
    assert outer.nics_per_node * outer.bandwidth_per_nic_GBps == 4 * 10.0
