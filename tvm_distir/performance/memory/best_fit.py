# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate best-fit placement, which needs more than the live bytes due to holes."""

from __future__ import annotations

from tvm_distir.support import Steps, memoized_steps, unrolled

from .caching_allocator import CachingAllocator
from .call_variants import DROPPED, CallVariant
from .segments import FreeBlocks


class Arena:
    """Arena that places blocks by best fit: in the smallest sufficient hole, else at the end.

    Attributes
    ----------
    top : int
        Most bytes that were in use, holes included.
    """

    def __init__(self) -> None:
        self.top = 0
        self._end = 0
        self._holes = FreeBlocks()
        self.give = self._holes.give

    def take(self, size: int) -> int:
        """Place a block, and return its address."""
        position = self._holes.best_fit(size)
        if position is None:
            # The last hole may reach the end: it grows.
            position = self._holes.begin_of_end.get(self._end, self._end)
            if position < self._end:
                self._holes.close(position)
            self._end = position + size
            self.top = max(self.top, self._end)
            return position
        hole = self._holes.close(position)
        if hole > size:
            self._holes.open(position + size, hole - size)
        return position


class Arenas:
    """Arena sizes of the functions of a program under best-fit placement.

    What a call takes for itself is a block, there while it runs; what it returns is placed by
    who calls it.

    Parameters
    ----------
    framework : CachingAllocator
    """

    def __init__(self, framework: CachingAllocator) -> None:
        self.framework = framework

    def total(self, use: CallVariant) -> int:
        """Return the bytes that a use takes, its results included."""
        return unrolled(self._allocate(use, True))

    @memoized_steps
    def _allocate(self, use: CallVariant, results: bool) -> Steps[int]:
        framework, arena = self.framework, Arena()
        lives, shape = framework.lives[use.function], framework.shape(use)
        dropped = {b for b, category in zip(lives.results, use.given) if category == DROPPED}
        escaping = set() if results else set(lives.results) - dropped
        positions: dict[int, int] = {}
        for number, (step, ends) in enumerate(zip(lives.steps, shape.ends, strict=True)):
            for buffer in step.new:
                if buffer not in escaping and shape.sizes[buffer]:
                    positions[buffer] = arena.take(shape.sizes[buffer])
            if step.op.callees:
                size = 0
                for call in framework.inner(lives, number, shape):
                    size = max(size, (yield self._allocate(call.use, False)))
                if size:
                    arena.give(arena.take(size), size)
            for buffer in ends:
                if buffer in positions:
                    arena.give(positions.pop(buffer), shape.sizes[buffer])
        return arena.top
