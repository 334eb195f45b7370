# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ranges of sizes of steps whose programs differ in numbers only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tvm_distir.models import DecoderConfig
from tvm_distir.planning.serving.size_order import SizeOrder, ranges_of, slots_of

EXPERTS = DecoderConfig(experts=32, top_k=2, capacity_factor=1.25, expert_ffn=16)
SAMPLES = [(2, 3), (5, 300), (16, 0), (48, 100), (130, 1000), (512, 0), (2048, 4096), (8192, 512)]


def by_tokens(size):
    return str(size >= 37)


def by_slots(size):
    """Programs change where few tokens have many slots: of 2 to 7 tokens, of 13 and of 14."""
    return str(size / int(slots_of(EXPERTS, np.array([size]))[0]) >= 7.2)


@pytest.mark.parametrize("kind", [by_tokens, by_slots, lambda size: "one"])
@pytest.mark.parametrize("step", [1, 4])
def test_a_range_has_the_sizes_of_its_program(kind, step):
    requests = set()

    def sampled(size, before):
        requests.add((size, before))
        return kind(size // step)

    order = SizeOrder(EXPERTS, step, 1, slots=True)
    samples = [(size * step, before) for size, before in SAMPLES]
    ranges = ranges_of(order, samples, sampled, 2, None)
    sizes = np.arange(16 if kind is by_tokens else 2, 3000) * step
    matches = [ranges.kinds[k] for k in ranges.of(sizes).tolist()]
    assert matches == [kind(size // step) for size in sizes.tolist()]
    for number, inside in enumerate(ranges.samples()):
        assert len(inside) >= 5
        assert {kind(size // step) for size, _ in inside} == {ranges.kinds[number]}
    first = len(requests)
    requests.clear()
    again = ranges_of(order, samples, sampled, 2, ranges)
    assert (again.begins, again.kinds) == (ranges.begins, ranges.kinds)
    assert len(requests) <= first


def test_sizes_without_experts_are_in_order_of_tokens():
    order = SizeOrder(DecoderConfig(), 1, 1)
    ranges = ranges_of(order, SAMPLES[2:], lambda size, _: by_tokens(size), 0, None)
    assert ranges.begins == [37]


@pytest.mark.parametrize("tokens", [1, 2, 12, 13, 14, 100, 8192])
def test_slots_are_those_of_the_model(tokens):
    assert int(slots_of(EXPERTS, np.array([tokens]))[0]) == replace(EXPERTS, seq=tokens).capacity
