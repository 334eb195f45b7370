# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate best-fit placement, which needs more than the live bytes due to holes."""

from __future__ import annotations

import bisect

from tvm_distir.support import Steps, unrolled

from .caching_allocator import DROPPED, CachingAllocator, CallVariant


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
        self._holes: list[tuple[int, int]] = []  # size and place
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Place a block, and return its address."""
        number = bisect.bisect_left(self._holes, (size, -1))
        if number == len(self._holes):
            # The last hole may reach the end: it grows.
            last = self._ends.get(self._end)
            place = self._end
            if last is not None:
                place = last
                self._close(last, self._end - last)
            self._end = place + size
            self.top = max(self.top, self._end)
            return place
        hole, place = self._holes[number]
        self._close(place, hole)
        if hole > size:
            self._open(place + size, hole - size)
        return place

    def give(self, place: int, size: int) -> None:
        """Free a block and merge adjacent holes."""
        before = self._ends.get(place)
        if before is not None:
            length = place - before
            self._close(before, length)
            place, size = before, size + length
        behind = self._starts.get(place + size)
        if behind is not None:
            self._close(place + size, behind)
            size += behind
        self._open(place, size)

    def _open(self, place: int, size: int) -> None:
        bisect.insort(self._holes, (size, place))
        self._starts[place], self._ends[place + size] = size, place

    def _close(self, place: int, size: int) -> None:
        del self._holes[bisect.bisect_left(self._holes, (size, place))]
        del self._starts[place], self._ends[place + size]


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
        self._cache: dict[CallVariant, int] = {}

    def inside(self, use: CallVariant) -> int:
        """Return the bytes of a use's buffers that it does not return."""
        return unrolled(self._inside(use))

    def _inside(self, use: CallVariant) -> Steps[int]:
        if use not in self._cache:
            self._cache[use] = yield from self._place(use, False)
        return self._cache[use]

    def whole(self, use: CallVariant) -> int:
        """Return the bytes that a use takes, its results included."""
        return unrolled(self._place(use, True))

    def _place(self, use: CallVariant, results: bool) -> Steps[int]:
        framework, arena = self.framework, Arena()
        lives, shape = framework.lives[use.function], framework.shape(use)
        dropped = {b for b, role in zip(lives.results, use.given) if role == DROPPED}
        escaping = set() if results else set(lives.results) - dropped
        places: dict[int, int] = {}
        for number, (step, ends) in enumerate(zip(lives.steps, shape.ends, strict=True)):
            for buffer in step.new:
                if buffer not in escaping and shape.sizes[buffer]:
                    places[buffer] = arena.take(shape.sizes[buffer])
            if step.op.callees:
                size = 0
                for call in framework.inner(lives, number, shape):
                    size = max(size, (yield self._inside(call.use)))
                if size:
                    arena.give(arena.take(size), size)
            for buffer in ends:
                if buffer in places:
                    arena.give(places.pop(buffer), shape.sizes[buffer])
        return arena.top
