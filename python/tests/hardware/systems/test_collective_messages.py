# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bytes and steps of collective algorithms, against algorithms that are executed by messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from tvm_distir.hardware.systems.collective_algorithms import TIMED, algorithm_named

Values = list[list[int]]
"""A value per rank, in as many blocks as there are ranks."""

Messages = list[tuple[int, int, int, int]]
"""Sender, receiver, block, number; all messages of a step are sent before any is received."""


def _ring_sum(values: Values) -> Iterator[Messages]:
    """Scatter the sum around the ring, then gather it."""
    n = len(values)
    for step in range(2 * (n - 1)):
        messages = []
        for rank in range(n):
            block = (rank - step) % n
            messages.append((rank, (rank + 1) % n, block, values[rank][block]))
        yield messages
        for _, receiver, block, number in messages:
            before = values[receiver][block] if step < n - 1 else 0
            values[receiver][block] = before + number


def _direct_sum(values: Values) -> Iterator[Messages]:
    """Send each block to the rank that sums it, which sends the sum to all."""
    n = len(values)
    scattered = [(r, o, o, values[r][o]) for r in range(n) for o in range(n) if r != o]
    yield scattered
    for _, receiver, block, number in scattered:
        values[receiver][block] += number
    gathered = [(r, o, r, values[r][r]) for r in range(n) for o in range(n) if r != o]
    yield gathered
    for _, receiver, block, number in gathered:
        values[receiver][block] = number


def _one_shot_sum(values: Values) -> Iterator[Messages]:
    """Send all blocks to all others; each sums by itself."""
    n = len(values)
    pairs = [(r, o) for r in range(n) for o in range(n) if r != o]
    messages = [(r, o, block, values[r][block]) for r, o in pairs for block in range(n)]
    yield messages
    for _, receiver, block, number in messages:
        values[receiver][block] += number


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("name", "execute"),
    [("ring", _ring_sum), ("direct", _direct_sum), ("one_shot", _one_shot_sum)],
)
def test_a_sum_sends_the_bytes_of_its_messages(
    name: str, execute: Callable[[Values], Iterator[Messages]], ranks: int
) -> None:
    values = [[100 * rank + block for block in range(ranks)] for rank in range(ranks)]
    expected = [sum(value[block] for value in values) for block in range(ranks)]
    sent, steps = [0] * ranks, 0
    for messages in execute(values):
        steps += 1
        for sender, *_ in messages:
            sent[sender] += 1
    assert values == [expected] * ranks
    algorithm, block_bytes = algorithm_named(name), 12
    got = algorithm.sent_bytes("all_reduce", ranks * block_bytes, ranks, 0.0)
    assert set(sent) == {Fraction(got).limit_denominator(1000) / block_bytes}
    if name == "ring":
        assert algorithm.steps("all_reduce", ranks) == steps


@pytest.mark.parametrize("name", ["ring", "direct"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_a_sum_is_a_reduce_scatter_and_a_gather(name: str, ranks: int) -> None:
    """One pass each, with the same share of copies; a pass sends all blocks but the own one."""
    algorithm = algorithm_named(name)
    parts = [kind for kind in algorithm.kinds if kind in ("all_gather", "reduce_scatter")]
    assert len(parts) == 2
    for copied in (0.0, 0.5, 1.0):
        halves = [algorithm.sent_bytes(kind, 60 * ranks, ranks, copied) for kind in parts]
        assert halves == [pytest.approx(60 * (ranks - 1 + copied))] * 2
        both = algorithm.sent_bytes("all_reduce", 60 * ranks, ranks, copied)
        assert both == pytest.approx(sum(halves))
    assert {algorithm.steps(kind, ranks) for kind in parts} == {ranks - 1}


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 9])
def test_a_tree_has_a_level_per_doubling(ranks: int) -> None:
    levels = next(count for count in range(9) if 2**count >= ranks)
    tree = algorithm_named("tree")
    assert tree.steps("all_reduce", ranks) == 2 * levels and tree.steps("all_reduce", 1) == 0
    assert tree.sent_bytes("all_reduce", 50, ranks, 0.0) == 2 * 50


def test_a_switch_sums_in_one_pass() -> None:
    """To the switch, and back; the same for any number of devices."""
    switch = algorithm_named("in_switch")
    assert {switch.steps("all_reduce", ranks) for ranks in (2, 8)} == {2}
    assert {switch.sent_bytes("all_reduce", 50, ranks, 0.0) for ranks in (2, 8)} == {50}


def test_all_to_all_is_direct_alone() -> None:
    names = ("ring", "tree", "direct", "one_shot", "in_switch")
    kinds = {name: set(algorithm_named(name).kinds) for name in names}
    assert kinds["direct"] == set(TIMED)
    assert [name for name in names if "all_to_all" in kinds[name]] == ["direct"]
