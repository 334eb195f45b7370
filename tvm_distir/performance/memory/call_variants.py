# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the variants in which functions are called, and what a call does to memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .account import CATEGORIES
from .buffer_lifetimes import MemoryStep

BLOCK_BYTES = 512
"""Sizes are multiples of it."""

OWN, DONATED, DROPPED = -1, -2, -3
"""Words for a result in place of a category: the function's category; donated, so that it takes
the memory of what it replaces; dropped, as the caller does not read it, and freed inside."""


class CallVariant(NamedTuple):
    """Variant in which a function is called.

    Attributes
    ----------
    function : str
    owned : tuple of (int, int, int)
        Parameters that nobody else reads any more, with their categories and bytes: they are freed
        inside.
    given : tuple of int
        The category of each result, or a word of those above; where it is empty, results keep the
        function's categories.
    categories : tuple of (int, int)
        Buffers of other categories than by themselves.
    """

    function: str
    owned: tuple[tuple[int, int, int], ...] = ()
    given: tuple[int, ...] = ()
    categories: tuple[tuple[int, int], ...] = ()


@dataclass
class MemoryLevel:
    """Live bytes above those at the entry, total and by category, and the most so far.

    Attributes
    ----------
    live, peak : int
    at : int
        Step of the peak; -1: the entry.
    categories, most : lists of int
    """

    live: int = 0
    peak: int = 0
    at: int = -1
    categories: list[int] = field(default_factory=lambda: [0] * len(CATEGORIES))
    most: list[int] = field(default_factory=lambda: [0] * len(CATEGORIES))

    def add(self, category: int, size: int) -> None:
        """Allocate or free bytes."""
        self.live += size
        self.categories[category] += size
        self.most[category] = max(self.most[category], self.categories[category])

    def free(self, buffers: Iterable[int], categories: Sequence[int], sizes: Sequence[int]) -> None:
        """Free buffers, given the category and the bytes of each."""
        for buffer in buffers:
            self.add(categories[buffer], -sizes[buffer])

    def over(self, inner: MemoryLevel, at: int) -> None:
        """Run a nested level: add its peak to the live bytes, then the bytes that it leaves."""
        if self.live + inner.peak > self.peak:
            self.peak, self.at = self.live + inner.peak, at
        for category, most in enumerate(inner.most):
            self.most[category] = max(self.most[category], self.categories[category] + most)
            self.categories[category] += inner.categories[category]
        self.live += inner.live

    def reach(self, at: int) -> None:
        """Record the bytes that are live at a step."""
        if self.live > self.peak:
            self.peak, self.at = self.live, at


class Shape(NamedTuple):
    """Buffers as a use has them.

    They have bytes and categories; parameters that may be freed, ends by step, and the results of
    calls that the callee frees as nobody reads them.
    """

    sizes: list[int]
    categories: list[int]
    owned: set[int]
    ends: Sequence[tuple[int, ...]]
    dropped: set[int]


class NestedCall(NamedTuple):
    """A function that a step runs: its use, and buffers of the caller that it frees."""

    use: CallVariant
    handed: dict[int, int]


class MemoryChange(NamedTuple):
    """A step of a use, with the calls that it runs and the buffers that are freed behind it."""

    number: int
    step: MemoryStep
    inner: Sequence[NestedCall]
    freed: list[int]

    @property
    def handed(self) -> set[int]:
        """Return the buffers that the calls free."""
        return {buffer for call in self.inner for buffer in call.handed}
