# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the peak of a step as the maximum of a few sums of tensor sizes.

The set of live tensors at each moment does not depend on their sizes. So the peak is the maximum,
over all moments, of a sum of sizes with integer coefficients; a moment at which no size counts more
than at another is left out. The few remaining moments are exact for all sizes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tvm_distir.core.plan import RankStep, Schedule, programs
from tvm_distir.performance.program.numbers import Numbers
from tvm_distir.performance.program.parts import Value
from tvm_distir.performance.program.program import Program
from tvm_distir.support import memoized

from .caching_allocator import CachingAllocator
from .call_variants import BLOCK_BYTES, MemoryLevel
from .last_uses import deaths_of
from .rank_events import RankEvents
from .ranks import RankMemories
from .steady_state import SteadyState, steady

Ints = npt.NDArray[np.int64]

_AT_ONCE = 64
"""Rows that are compared with each other at once."""


class PeakFormula(MemoryLevel):
    """Memory level that counts tensors by kind of size instead of bytes.

    Parameters
    ----------
    kinds : int
    """

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.held = np.zeros(kinds, np.int64)
        self._most: list[Ints] = [np.zeros((1, kinds), np.int64)]

    def add(self, category: int, size: int) -> None:
        """Allocate or free bytes."""
        if size:
            self.held[abs(size) // BLOCK_BYTES - 1] += 1 if size > 0 else -1

    def over(self, inner: MemoryLevel, at: int) -> None:
        """Run a nested level: add its peak to the live bytes, then the bytes that it leaves."""
        assert isinstance(inner, PeakFormula)
        self._most.append(self.held + inner.most_held)
        self.held += inner.held

    def reach(self, at: int) -> None:
        """Record the bytes that are live at a step."""
        self._most.append(self.held[None].copy())

    @property
    def most_held(self) -> Ints:
        """Return the moments of which none is below another, (moments, kinds)."""
        if len(self._most) > 1:
            self._most = [highest(np.concatenate(self._most))]
        return self._most[0]


def highest(moments: Ints) -> Ints:
    """Return the rows that no other row reaches in all columns."""
    moments = different(moments)
    order = np.argsort(-moments.sum(axis=1), kind="stable")
    frontier = np.zeros((0, moments.shape[1]), np.int64)
    for at in range(0, order.size, _AT_ONCE):
        rows = moments[order[at : at + _AT_ONCE]]
        rows = rows[_reaching(rows, frontier) == 0]
        frontier = np.concatenate((frontier, rows[_reaching(rows, rows) == 1]))  # by itself alone
    return frontier


def _reaching(rows: Ints, others: Ints) -> Ints:
    """Return, per row, how many other rows are as high in all columns."""
    counts: Ints = (others[None] >= rows[:, None]).all(axis=2).sum(axis=1)
    return counts


def different(moments: Ints) -> Ints:
    """Return the distinct rows."""
    if len(moments) == 1:
        return moments
    rows = np.ascontiguousarray(moments)
    packed = rows.view(np.dtype((np.void, rows.strides[0]))).ravel()
    _, first = np.unique(packed, return_index=True)
    return rows[first]


class SizeKinds:
    """Kinds of the sizes of a program: values of the same quantity are of the same kind.

    Parameters
    ----------
    which : int64 array
        The quantity of each number of the program.
    """

    def __init__(self, which: Ints) -> None:
        self._which = which
        self._kind_of: dict[int, int] = {}

    @property
    def count(self) -> int:
        """Return the number of kinds so far."""
        return len(self._kind_of)

    def marked(self, values: Sequence[Value], at: Sequence[int]) -> tuple[Value, ...]:
        """Return values whose bytes say their kinds, as :class:`PeakFormula` reads them."""
        kinds = [self._kind_of.setdefault(int(self._which[k]), self.count) for k in at]
        return tuple(
            value._replace(bytes=(kind + 1) * BLOCK_BYTES if value.bytes else 0)
            for value, kind in zip(values, kinds, strict=True)
        )

    def of_program(self, program: Program, numbers: Numbers) -> Program:
        """Return a program whose values say their kinds."""
        functions = {
            name: dataclasses.replace(fn, values=self.marked(fn.values, numbers.value_at[name]))
            for name, fn in program.functions.items()
        }
        staged = program.staged
        if staged is not None:
            numbered_kinds = tuple(
                dataclasses.replace(category, slots=self.marked(category.slots, at))
                for category, at in zip(staged.stage_kinds, numbers.slot_at, strict=True)
            )
            staged = dataclasses.replace(staged, stage_kinds=numbered_kinds)
        return dataclasses.replace(program, functions=functions, staged=staged)

    def highest_bytes(self, moments: Ints, quantities: Ints) -> Ints:
        """Return the bytes of the highest moment, (rows,), from (quantities, rows)."""
        blocks = -(-quantities[list(self._kind_of)] // BLOCK_BYTES)
        sums = moments.astype(np.float64) @ blocks.astype(np.float64)
        return np.asarray(sums.max(axis=0, initial=0.0), np.int64) * BLOCK_BYTES  # below 2^53


class Peaks:
    """Peaks of like steps, which differ in sizes and numbers of micro-batches.

    Parameters
    ----------
    program : Program
        The program of a step, grouped into kernels; without branches. Without stages it has no
        micro-batches.
    numbers : Numbers
        The numbers of the program.
    which : int64 array
        The quantity of each number of the program.
    """

    def __init__(self, program: Program, numbers: Numbers, which: Ints) -> None:
        self.kinds = SizeKinds(which)
        program = self.kinds.of_program(program, numbers)
        self._schedule = program.as_stages.schedule
        level = functools.partial(PeakFormula, self.kinds.count)
        framework = CachingAllocator(program, level=level)
        self._memories = RankMemories(program, framework, positions=False)

    def of(self, quantities: Ints, micro_batches: int = 1) -> Ints:
        """Return the bytes of the fullest device of steps, (rows,), from (quantities, rows)."""
        return self.kinds.highest_bytes(self.moments(micro_batches), quantities)

    @memoized
    def moments(self, micro_batches: int) -> Ints:
        """Return how many tensors of each size are there, (moments, quantities)."""
        schedule = dataclasses.replace(self._schedule, micro_batches=micro_batches)
        steps_of_ranks = enumerate(programs(schedule))
        moments = [self._rank(rank, steps, schedule) for rank, steps in steps_of_ranks]
        return highest(np.concatenate(moments))

    def _rank(self, rank: int, steps: Sequence[RankStep], schedule: Schedule) -> Ints:
        """Return the moments of a rank that takes these steps."""
        walked = (self._walked(*walk) for walk in self._memories.walks(rank, steps, schedule))
        return next(moments for moments in walked if moments is not None)

    def _walked(self, walk: RankEvents, shorter: SteadyState | None) -> Ints | None:
        """Return the moments of a walk; None where the periods left out are not uniform."""
        base = PeakFormula(self.kinds.count)
        for buffer in self._memories.resident(walk):
            base.add(buffer.role, buffer.bytes)
        known: list[PeakFormula] = []
        number: dict[int, int] = {}
        order = []
        for position, death in enumerate(deaths_of(walk)):
            level, _ = self._memories.level(walk, position, death)
            assert isinstance(level, PeakFormula)
            if id(level) not in number:
                number[id(level)] = len(known)
                known.append(level)
            order.append(number[id(level)])
        kind = np.array(order, np.int64)
        left = np.array([moment.held for moment in known], np.int64).reshape(-1, self.kinds.count)[
            kind
        ]
        if shorter is not None and not steady(walk.before, shorter, kind, left):
            return None
        before = base.held + np.cumsum(left, axis=0) - left
        moments = [base.held[None]]
        for position, level in enumerate(known):
            moments_here = highest(before[kind == position])
            moments.append(
                (moments_here[:, None] + level.most_held[None]).reshape(-1, self.kinds.count)
            )
        return highest(np.concatenate(moments))
