# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate the segments of PyTorch's caching allocator of CUDA memory.

The constants and rules are those of ``c10/core/AllocatorConfig.h`` and of "Memory management" in
PyTorch's notes on CUDA semantics: memory comes from the driver in segments, which blocks are split
from and merged in, and which are not given back. Blocks of at most 1 MiB and larger ones do not
share segments. With ``expandable_segments:True`` either kind has a single segment, which grows.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection
from dataclasses import dataclass, field

MIB = 1 << 20
BLOCK_BYTES = 512
"""Sizes are multiples of it, and no block is split into a smaller rest."""
SMALL_BYTES = MIB
"""Blocks of at most so many bytes are in segments of small blocks."""
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
"""The segment of a large block that is smaller than :data:`SOLE_BYTES`."""
SOLE_BYTES = 10 * MIB
"""Blocks of at least so many bytes get a segment of their size."""
SOLE_MULTIPLE = 2 * MIB
"""The sizes of these segments are multiples of it."""


@dataclass
class FreeBlocks:
    """Free blocks: sizes and places in order, and the ends of blocks."""

    free: list[tuple[int, int]] = field(default_factory=list)
    size_at: dict[int, int] = field(default_factory=dict)
    begin_of_end: dict[int, int] = field(default_factory=dict)

    def best_fit(self, size: int) -> int | None:
        """Return the place of the smallest block that is large enough, the first of several."""
        number = bisect.bisect_left(self.free, (size, -1))
        return self.free[number][1] if number < len(self.free) else None

    def open(self, position: int, size: int) -> None:
        """Add a free block."""
        bisect.insort(self.free, (size, position))
        self.size_at[position], self.begin_of_end[position + size] = size, position

    def close(self, position: int) -> int:
        """Remove a free block, and return its size."""
        size = self.size_at.pop(position)
        del self.free[bisect.bisect_left(self.free, (size, position))]
        del self.begin_of_end[position + size]
        return size

    def give(self, position: int, size: int, borders: Collection[int] = ()) -> None:
        """Free a block, and merge free blocks that no border divides."""
        if position not in borders and position in self.begin_of_end:
            size += position - self.begin_of_end[position]
            position = self.begin_of_end[position]
            self.close(position)
        if position + size in self.size_at and position + size not in borders:
            size += self.close(position + size)
        self.open(position, size)


class SegmentAllocator:
    """Allocator of blocks in segments.

    Parameters
    ----------
    expandable : bool
        Whether segments grow, as with ``expandable_segments:True``.

    Attributes
    ----------
    allocated, reserved : int
        The bytes of blocks in use, and of segments.
    most_allocated : int
        Most bytes of blocks that were in use at once; segments only become more.
    blocks : dict of int to (int, bool)
        The size of each block in use, and whether it is small, by its place.
    segments : dict of int to int
        The size of each segment, by its place.
    """

    def __init__(self, expandable: bool = False) -> None:
        self.expandable = expandable
        self.allocated = self.reserved = self.most_allocated = 0
        self.blocks: dict[int, tuple[int, bool]] = {}
        self.segments: dict[int, int] = {}
        self._pools = {True: FreeBlocks(), False: FreeBlocks()}
        self._end = 0

    def take(self, size: int) -> int:
        """Allocate a block, and return its place."""
        size = -(-max(size, 1) // BLOCK_BYTES) * BLOCK_BYTES
        small = size <= SMALL_BYTES
        pool = self._pools[small]
        position = pool.best_fit(size)
        if position is None:
            position = self._expand(small, size) if self.expandable else self._segment(small, size)
        size_bytes = pool.close(position)
        rest = size_bytes - size
        fine = small or self.expandable
        if rest >= BLOCK_BYTES if fine else rest > SMALL_BYTES:
            pool.open(position + size, rest)
            size_bytes = size
        self.blocks[position] = size_bytes, small
        self.allocated += size_bytes
        self.most_allocated = max(self.most_allocated, self.allocated)
        return position

    def give(self, position: int) -> None:
        """Free a block, and merge it with the free blocks beside it in its segment."""
        size, small = self.blocks.pop(position)
        self.allocated -= size
        self._pools[small].give(position, size, self.segments)

    def _segment(self, small: bool, size: int) -> int:
        """Take a segment from the driver."""
        if small:
            size_bytes = SMALL_SEGMENT_BYTES
        elif size < SOLE_BYTES:
            size_bytes = LARGE_SEGMENT_BYTES
        else:
            size_bytes = -(-size // SOLE_MULTIPLE) * SOLE_MULTIPLE
        position, self._end = self._end, self._end + size_bytes
        self.segments[position] = size_bytes
        self.reserved += size_bytes
        self._pools[small].open(position, size_bytes)
        return position

    def _expand(self, small: bool, size: int) -> int:
        """Map pages behind the segment of a pool, of which a free end is part of the block."""
        pool, start = self._pools[small], 0 if small else 1 << 60
        end = start + self.segments.setdefault(start, 0)
        position = pool.begin_of_end.get(end, end)
        had = pool.close(position) if position < end else 0
        page = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        more = -(-(size - had) // page) * page
        self.segments[start] += more
        self.reserved += more
        pool.open(position, had + more)
        return position
