# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate the memory of a framework's allocator, which frees at the last use.

A function is walked once for each variant in which it is called, not once per call: a caller needs
only the bytes that it takes above those at its entry, and the bytes that it leaves.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from tvm_distir.performance.program.program import Program
from tvm_distir.support import Steps, memoized, memoized_steps, unrolled

from .account import GRADIENTS, Label, LiveBuffer
from .buffer_lifetimes import FunctionBuffers, ProgramBuffers
from .buffer_names import BufferNames, CallPath
from .call_variants import (
    BLOCK_BYTES,
    DONATED,
    DROPPED,
    OWN,
    CallVariant,
    MemoryChange,
    MemoryLevel,
    NestedCall,
    Shape,
)

_SCALAR_BYTES = 8


class CachingAllocator:
    """Levels of the functions of a program.

    Parameters
    ----------
    program : Program
    block_bytes : int
    level : callable giving MemoryLevel
        Makes a level to which nothing has been added.
    """

    def __init__(
        self,
        program: Program,
        block_bytes: int = BLOCK_BYTES,
        level: Callable[[], MemoryLevel] = MemoryLevel,
    ) -> None:
        self.new, self._program = level, program
        self.lives = ProgramBuffers(program, block_bytes)
        self.values = {name: fn.values for name, fn in program.functions.items()}

    @memoized
    def level(self, use: CallVariant) -> MemoryLevel:
        """Return the bytes that a use takes and leaves, its results included."""
        return unrolled(self._walk(use))

    @memoized_steps
    def _walk(self, use: CallVariant) -> Steps[MemoryLevel]:
        lives, level = self.lives[use.function], self.new()
        shape = self.shape(use)
        level.free(shape.owned & lives.unread, shape.categories, shape.sizes)
        for change in self.changes(lives, shape):
            if change.inner:
                for call in change.inner:
                    yield self._walk(call.use)
                level.over(self.run(change, shape), change.number)
            else:
                for buffer in change.step.new:
                    level.add(shape.categories[buffer], shape.sizes[buffer])
                level.reach(change.number)
            level.free(change.freed, shape.categories, shape.sizes)
        return level

    def changes(self, lives: FunctionBuffers, shape: Shape) -> Iterator[MemoryChange]:
        """Yield the steps of a use; what its calls free is not freed again."""
        for number, (step, ends) in enumerate(zip(lives.steps, shape.ends, strict=True)):
            inner = self.inner(lives, number, shape) if step.op.callees else []
            change = MemoryChange(number, step, inner, [])
            handed = change.handed
            change.freed.extend(
                buffer
                for buffer in ends
                if buffer not in handed and (buffer >= lives.params or buffer in shape.owned)
            )
            yield change

    def run(self, change: MemoryChange, shape: Shape) -> MemoryLevel:
        """Return the bytes that a call takes and leaves; of a branch the most of either side."""
        if len(change.inner) == 1:
            return self.level(change.inner[0].use)
        both, handed = MemoryLevel(), change.handed
        for call in change.inner:
            side = MemoryLevel()
            side.free(handed - set(call.handed), shape.categories, shape.sizes)
            side.over(self.level(call.use), 0)
            both.peak = max(both.peak, side.peak)
            both.most = [max(pair) for pair in zip(both.most, side.most, strict=True)]
        both.free(handed, shape.categories, shape.sizes)
        for buffer in change.step.new:
            both.add(shape.categories[buffer], shape.sizes[buffer])
        both.reach(0)
        return both

    def shape(self, use: CallVariant) -> Shape:
        """Return the sizes and categories of the buffers of a use."""
        lives = self.lives[use.function]
        sizes, categories = list(lives.sizes), list(lives.categories)
        for buffer, category, size in use.owned:
            categories[buffer], sizes[buffer] = category, size
        for buffer, category in use.categories:
            categories[buffer] = category
        donated, dropped = set[int](), set[int]()
        for buffer, category in zip(lives.results, use.given):
            if buffer < lives.params or category == OWN:
                continue
            if category == DROPPED:
                dropped.add(buffer)
            elif category == DONATED:
                sizes[buffer] = 0
                donated.add(buffer)
            else:
                categories[buffer] = category
        if donated:
            self._mark_gradients(lives, donated, categories, sizes)
        ends, inside = list(lives.ends) if dropped else lives.ends, set[int]()
        for buffer in dropped:
            maker = lives.makers[buffer]
            if lives.last[buffer] > maker or len(lives.steps[maker].op.callees) != 1:
                ends[lives.last[buffer]] += (buffer,)
            else:
                sizes[buffer] = 0
                inside.add(buffer)
        return Shape(sizes, categories, {param for param, _, _ in use.owned}, ends, inside)

    def inner(self, lives: FunctionBuffers, number: int, shape: Shape) -> list[NestedCall]:
        """Return the calls of a step, with the buffers that each passes as last uses."""
        step, ends = lives.steps[number], set(shape.ends[number])
        calls, times = [], Counter(step.reads)
        for callee, args in self.lives.called(step.op, step.reads):
            results = frozenset(callee.results)
            handed = {
                buffer: param
                for param, buffer in enumerate(args)
                if buffer in ends
                and (buffer >= lives.params or buffer in shape.owned)
                and times[buffer] == 1
                and param not in results
            }
            categories = tuple(
                OWN
                if buffer < lives.params or buffer not in step.new
                else DROPPED
                if buffer in shape.dropped
                else shape.categories[buffer]
                if shape.sizes[buffer] or not lives.sizes[buffer]
                else DONATED
                for buffer in step.writes
            )
            owned = tuple(
                (param, shape.categories[buffer], shape.sizes[buffer])
                for buffer, param in handed.items()
            )
            calls.append(NestedCall(CallVariant(callee.name, owned, categories), handed))
        return calls

    @functools.cached_property
    def names(self) -> BufferNames:
        """Return the names of the values of the program."""
        return BufferNames(self._program)

    def held(
        self, use: CallVariant, labels: Mapping[int, Label] | None = None
    ) -> Iterator[LiveBuffer]:
        """Yield the buffers of a call at its peak, with owned parameters, named by ``labels``."""
        path: CallPath | None = None
        call: CallVariant | None = use
        while call is not None:
            call, labels, path = yield from self._held(call, labels, path)

    def _held(
        self, use: CallVariant, labels: Mapping[int, Label] | None, path: CallPath | None
    ) -> Generator[
        LiveBuffer, None, tuple[CallVariant | None, Mapping[int, Label], CallPath | None]
    ]:
        """Yield what a call itself holds; return the call inside of it, with names of its own."""
        lives, shape, at = self.lives[use.function], self.shape(use), self.level(use).at
        freed = set(lives.unread) if at >= 0 else set[int]()
        for ends in shape.ends[: max(at, 0)]:
            freed.update(ends)
        inner: Sequence[NestedCall] = ()
        if at >= 0 and lives.steps[at].op.callees:
            inner = self.inner(lives, at, shape)
        here = [self.level(call.use).peak for call in inner]
        named = {}
        for buffer, size in enumerate(shape.sizes):
            mine = buffer in shape.owned if buffer < lives.params else lives.makers[buffer] <= at
            if not mine or buffer in freed or not size:
                continue
            named[buffer] = (labels or {}).get(buffer) or self.label(lives, buffer, path)
            if any(buffer in call.handed for call in inner):
                continue
            if not (inner and lives.makers[buffer] == at):
                yield LiveBuffer(named[buffer], shape.categories[buffer], size)
        if inner:
            call = inner[here.index(max(here))]
            below = {
                param: named[buffer] for buffer, param in call.handed.items() if buffer in named
            }
            return call.use, below, CallPath(lives.name, lives.steps[at].op, path)
        return None, {}, None

    def moment(self, use: CallVariant) -> str:
        """Return where the peak of a use is: functions and op, joined by ``/``."""
        positions = [use.function]
        while (at := self.level(use).at) >= 0:
            lives = self.lives[use.function]
            step = lives.steps[at]
            if not step.op.callees:
                positions.append(step.op.name)
                break
            inner = self.inner(lives, at, self.shape(use))
            use = max(inner, key=lambda call: self.level(call.use).peak).use
            positions.append(use.function)
        return "/".join(positions)

    def label(self, lives: FunctionBuffers, buffer: int, path: CallPath | None = None) -> Label:
        """Return the name of a buffer that a function makes."""
        maker = lives.makers[buffer]
        op = lives.steps[maker].op if maker >= 0 else None
        title = self.names.value(lives.name, lives.values[buffer], path)
        if buffer in lives.scratch:
            title = f"scratch of {title}"
        return Label(title, "" if op is None else op.callee or op.op, lives.name)

    def _mark_gradients(
        self, lives: FunctionBuffers, donated: set[int], categories: list[int], sizes: list[int]
    ) -> None:
        """Mark gradients: inputs of pure updates, and the results of collectives on them.

        A call updates where all that it makes takes the memory of what it replaces, or is gathered
        to what does.
        """
        gradients, values = set[int](), self.values[lives.name]
        updated = set(donated)
        for step, ends in zip(reversed(lives.steps), reversed(lives.ends), strict=True):
            moves = step.op.kind in ("collective", "wait")
            if moves and step.new and updated.issuperset(step.new):
                updated.update(step.reads)
            if step.op.callees and step.new and updated.issuperset(step.new):
                gradients.update(
                    buffer
                    for buffer in step.reads
                    if buffer >= lives.params and values[lives.values[buffer]].bytes > _SCALAR_BYTES
                )
            if moves and gradients.intersection(step.writes):
                gradients.update(b for b in step.reads if b >= lives.params and b in ends)
        for buffer in gradients - donated:
            if sizes[buffer]:
                categories[buffer] = GRADIENTS
