# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Segments of the caching allocator, against its header and a plain list of bytes."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from tvm_distir.performance.memory import segments
from tvm_distir.performance.memory.segments import MIB, SegmentAllocator


def test_constants_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"
    result = dict(re.findall(r"constexpr size_t (k\w+) = (\d+);", header.read_text()))
    assert int(result["kMinBlockSize"]) == segments.BLOCK_BYTES
    assert int(result["kSmallSize"]) == segments.SMALL_BYTES
    assert int(result["kSmallBuffer"]) == segments.SMALL_SEGMENT_BYTES
    assert int(result["kMinLargeAlloc"]) == segments.SOLE_BYTES
    assert int(result["kRoundLarge"]) == segments.SOLE_MULTIPLE


class Reference:
    """The rules over a list of [size, in use] per segment, looked through from the beginning."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[list[int]]]] = []
        self.where: dict[int, tuple[list[list[int]], list[int]]] = {}
        self.reserved = self.allocated = 0

    def take(self, name: int, size: int) -> None:
        size = -(-size // 512) * 512
        small = size <= 1 << 20
        free = [
            (block[0], number, place, block, blocks)
            for number, (kind, blocks) in enumerate(self.segments)
            if kind == small
            for place, block in enumerate(blocks)
            if not block[1] and block[0] >= size
        ]
        if free:
            *_, block, blocks = min(free, key=lambda row: row[:3])
        else:
            sole = -(-size // (2 << 20)) * (2 << 20)
            whole = 2 << 20 if small else 20 << 20 if size < 10 << 20 else sole
            block = [whole, 0]
            blocks = [block]
            self.segments.append((small, blocks))
            self.reserved += whole
        rest = block[0] - size
        if rest >= 512 if small else rest > 1 << 20:
            place = next(k for k, other in enumerate(blocks) if other is block)
            blocks.insert(place + 1, [rest, 0])
            block[0] = size
        block[1] = 1
        self.allocated += block[0]
        self.where[name] = blocks, block

    def give(self, name: int) -> None:
        blocks, block = self.where.pop(name)
        self.allocated -= block[0]
        block[1] = 0
        merged: list[list[int]] = []
        for other in list(blocks):
            if merged and not merged[-1][1] and not other[1]:
                merged[-1][0] += other[0]
            else:
                merged.append(other)
        blocks[:] = merged


def sizes(rng: random.Random) -> int:
    """Sizes of all kinds: scalars, small and large blocks, and those with their own segment."""
    return rng.randint(1, rng.choice((512, 1 << 14, 1 << 20, 3 << 20, 10 << 20, 40 << 20)))


@pytest.mark.parametrize("seed", range(8))
def test_random_sequences_reserve_what_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    allocator, reference, live = SegmentAllocator(), Reference(), dict[int, int]()
    for name in range(600):
        if live and rng.random() < 0.45:
            old = rng.choice(sorted(live))
            allocator.give(live.pop(old))
            reference.give(old)
        size = sizes(rng)
        live[name] = allocator.take(size)
        reference.take(name, size)
        assert (allocator.allocated, allocator.reserved) == (
            reference.allocated, reference.reserved,
        )  # fmt: skip


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_laws_of_an_allocator(seed: int, expandable: bool) -> None:
    """No two blocks overlap, segments cover them, and segments are never given back."""
    rng = random.Random(seed)
    allocator, live, before = SegmentAllocator(expandable), dict[int, int](), 0
    for _ in range(400):
        if live and rng.random() < 0.45:
            place = rng.choice(sorted(live))
            del live[place]
            allocator.give(place)
        size = sizes(rng)
        live[allocator.take(size)] = size
        spans = sorted((place, place + stored) for place, (stored, _) in allocator.blocks.items())
        assert [place for place, _ in spans] == sorted(live)
        assert all(end - place >= live[place] for place, end in spans)
        assert all(left[1] <= other[0] for left, other in itertools.pairwise(spans))
        covered = sorted((place, place + size) for place, size in allocator.segments.items())
        assert all(any(a <= p and e <= b for a, b in covered) for p, e in spans)
        assert allocator.reserved == sum(allocator.segments.values()) >= allocator.allocated
        assert allocator.reserved >= before
        before = allocator.reserved
    for place in list(live):
        allocator.give(place)
    assert (allocator.allocated, allocator.reserved) == (0, before)


def test_examples_by_hand() -> None:
    """A scalar takes 2 MiB, a block of 3 MiB 20 MiB, of 11 MiB 12; the rest of each is used."""
    allocator = SegmentAllocator()
    allocator.take(4)
    assert allocator.reserved == 2 * MIB
    large = allocator.take(3 * MIB)
    assert allocator.reserved == 22 * MIB
    allocator.take(11 * MIB)  # behind the 3
    assert allocator.reserved == 22 * MIB
    allocator.take(11 * MIB)
    assert allocator.reserved == 34 * MIB
    allocator.give(large)
    allocator.take(5 * MIB)  # 3 are free in front and 6 behind
    assert allocator.reserved == 34 * MIB


def test_expandable_segments_grow_by_pages() -> None:
    """Freed blocks that would not fit apart are there as one, and the end is used first."""
    plain, grown = SegmentAllocator(), SegmentAllocator(expandable=True)
    for allocator in (plain, grown):
        places = [allocator.take(40 * MIB) for _ in range(4)]
        for place in places:
            allocator.give(place)
        allocator.take(100 * MIB)
    assert plain.reserved == 260 * MIB
    assert grown.reserved == 160 * MIB
