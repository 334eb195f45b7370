# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bytes and elements that devices send and receive, counted element by element."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest

from tvm_distir.core.collectives.meaning import Collective, crossing_elements
from tvm_distir.core.collectives.tiles import Transfer
from tvm_distir.core.collectives.volume import sent_bytes, sent_share
from tvm_distir.core.ir.operators.names import COLLECTIVES
from tvm_distir.core.redistribution.costs import EXCHANGE_EXTRA, LAUNCH_BYTES, RingCosts
from tvm_distir.support.errors.tree import SimulationError

Element = tuple[int, ...]
Side = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("result_bytes", [0, 1, 7, 24, 1000])
def test_collectives_send_the_blocks_of_their_rings(ranks: int, result_bytes: int) -> None:
    """Each rank passes ``n - 1`` blocks on per pass; fractions of a byte are rounded up."""
    part, block = Fraction(result_bytes, ranks), Fraction(result_bytes)
    passed = {"all_reduce": 2 * [part], "all_gather": [part], "reduce_scatter": [block],
              "all_to_all": [part]}  # fmt: skip
    for kind, blocks in passed.items():
        expected = sum((ranks - 1) * size for size in blocks)
        assert sent_bytes(kind, result_bytes, ranks) == math.ceil(expected)
    assert sent_bytes("send", result_bytes, ranks) == result_bytes
    assert sent_bytes("recv", result_bytes, ranks) == result_bytes
    assert ranks > 1 or not any(sent_bytes(kind, result_bytes, 1) for kind in COLLECTIVES)
    permuted = 0 if ranks == 1 else result_bytes
    assert sent_bytes("collective_permute", result_bytes, ranks) == permuted


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"all_reduce"):
        sent_bytes("allreduce", 1, 2)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_share_is_the_bytes_of_the_collective(kind: str, ranks: int) -> None:
    """The value whole along the axis is what all-reduce and all-gather give, else ``n`` results."""
    result = 576 if kind in ("all_reduce", "all_gather") else 576 // ranks
    assert sent_share(kind, 576, ranks) == sent_bytes(kind, result, ranks)


def _stored(shape: tuple[int, ...], side: Side) -> dict[int, set[Element]]:
    """Return the elements of each device: each axis cuts what is left of its dim in blocks."""
    mesh, devices, labels = side
    stored = {}
    for device, place in zip(devices, itertools.product(*map(range, mesh)), strict=True):
        ranges = [range(extent) for extent in shape]
        sizes = list(shape)
        for size, at, label in zip(mesh, place, labels, strict=True):
            if label >= 0:
                sizes[label] = -(-sizes[label] // size)
                ranges[label] = ranges[label][at * sizes[label] : (at + 1) * sizes[label]]
        stored[device] = set(itertools.product(*ranges))
    return stored


def _side(rng: random.Random, first: int) -> Side:
    mesh = rng.choice(((4,), (2, 2), (2, 3), (1, 2), (3,)))
    devices = list(range(first, first + math.prod(mesh)))
    rng.shuffle(devices)
    return mesh, tuple(devices), tuple(rng.choice((-1, 0, 1)) for _ in mesh)


@pytest.mark.parametrize("seed", range(40))
def test_a_transfer_moves_each_element_that_a_device_lacks_once(seed: int) -> None:
    """Between the same devices, some of them, and others; what a device has is not sent to it."""
    rng = random.Random(seed)
    shape = (rng.randint(4, 9), rng.randint(4, 9))
    transfer = Transfer(0, shape, _side(rng, 0), _side(rng, rng.choice((0, 2, 8))))
    before, after = _stored(shape, transfer.src), _stored(shape, transfer.dst)
    sent, received = dict.fromkeys(before, 0), dict.fromkeys(after, 0)
    for tile in transfer.tiles():
        moved = set(itertools.product(*(range(a, b) for a, b in tile.dst_bounds)))
        assert len(moved) == tile.elements
        if tile.src != tile.dst:
            sent[tile.src] += tile.elements
            received[tile.dst] += tile.elements
    lacking = {device: len(want - before.get(device, set())) for device, want in after.items()}
    # A device that has a part of its new shard in a tile of its own is not sent that tile again.
    assert received == lacking
    assert transfer.crossing_elements(False) == max(lacking.values())
    assert transfer.crossing_elements(True) == max(sent.values())
    for device in after:
        assert transfer.crossing_elements(False, [device]) == lacking[device]
    for device in before:
        assert transfer.crossing_elements(True, [device]) == sent[device]


def test_owners_of_equal_elements_send_in_turn() -> None:
    """Two copies on two devices, to four other devices: each sends two of them."""
    transfer = Transfer(0, (6,), ((2,), (0, 1), (-1,)), ((4,), (2, 3, 4, 5), (-1,)))
    assert transfer.crossing_elements(True) == 12 and transfer.crossing_elements(False) == 6
    alone = Transfer(0, (6,), ((1,), (0,), (-1,)), ((4,), (2, 3, 4, 5), (-1,)))
    assert alone.crossing_elements(True) == 24


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_step_costs_what_it_sends_and_its_launch(kind: str) -> None:
    """An exchange costs more than a collective that sends as much; local steps cost least."""
    costs = RingCosts()
    for ranks in (2, 4):
        groups = [list(range(first, first + ranks)) for first in (0, ranks)]
        assert costs.step(kind, 1000, groups) == sent_bytes(kind, 1000, ranks) + LAUNCH_BYTES
        assert costs.step("exchange", 1000, groups) == 1000 + LAUNCH_BYTES + EXCHANGE_EXTRA
        assert costs.step("local_slice", 10**9, groups) == 1
        part = 1000 * (ranks - 1) // ranks  # what a rank lacks of the result of a gather
        assert costs.floor(part) <= costs.step("all_gather", 1000, groups)
    assert costs.step(kind, 1000, [[0], [1]]) == 0


@pytest.mark.parametrize("seed", range(30))
def test_an_exchange_brings_what_a_device_lacks(seed: int) -> None:
    rng = random.Random(seed)
    mesh = rng.choice(((4,), (2, 2), (2, 3)))
    devices = tuple(range(math.prod(mesh)))
    shape = tuple(rng.randint(4, 9) for _ in range(2))
    before, after = ((mesh, devices, tuple(rng.choice((-1, 0, 1)) for _ in mesh)) for _ in range(2))
    args = (("shape", shape), ("src", before), ("dst", after))
    call = Collective("exchange", (devices,), args)
    have, want = _stored(shape, before), _stored(shape, after)
    assert crossing_elements(call) == max(len(want[d] - have[d]) for d in devices)
