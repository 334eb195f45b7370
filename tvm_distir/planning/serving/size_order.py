# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Order the sizes of steps so that steps of the same program are neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tvm_distir.models import DecoderConfig

Ints = npt.NDArray[np.int64]

_PARTS = 1 << 20
"""Parts of a token per slot that are distinguished."""
_NO_RANK = 1 << 62


def slots_of(config: DecoderConfig, tokens: Ints) -> Ints:
    """Return the slots that an expert has for the tokens of a pool."""
    even = tokens * config.top_k * config.capacity_factor / config.experts
    return np.minimum(tokens, np.maximum(1, np.ceil(even).astype(np.int64)))


@dataclass(frozen=True)
class SizeOrder:
    """Order of the first sizes of steps: requests that decode, or tokens that fill caches.

    What a plan leaves open is decided by costs, which grow with tokens. Experts with a capacity
    have whole slots, so that costs also depend on the tokens per slot, which do not grow with
    tokens: 12 tokens may have a slot of each expert, 13 tokens two.

    Attributes
    ----------
    config : DecoderConfig
    step : int
        Sizes are multiples of it: of the parts of data parallelism.
    tokens : int
        Tokens of a pool for a step of this size.
    slots : bool
        Whether the order is that of tokens per slot, instead of tokens.
    """

    config: DecoderConfig
    step: int
    tokens: int
    slots: bool = False

    def rank(self, sizes: Ints) -> Ints:
        """Return numbers by which the sizes are in order."""
        if not self.slots:
            return sizes
        tokens = sizes // self.step * self.tokens
        return np.asarray(tokens * _PARTS // slots_of(self.config, tokens), np.int64)

    def between(self, low: int, high: int, last: int) -> Ints:
        """Return the sizes up to ``last`` of ranks from ``low`` to below ``high``, in order."""
        if not self.slots:
            first = -(-max(low, self.step) // self.step) * self.step
            return np.arange(first, min(high, last + 1), self.step, dtype=np.int64)
        sizes = np.arange(self.step, last + 1, self.step, dtype=np.int64)
        sizes = sizes[sizes > 1]
        ranks = self.rank(sizes)
        inside = (ranks >= low) & (ranks < high)
        return np.asarray(sizes[inside][np.argsort(ranks[inside], kind="stable")], np.int64)

    def change(self, low: int, high: int, is_low: Callable[[int], bool], guess: Ints) -> int:
        """Return the rank from which on programs are those of ``high``, by bisection.

        Parameters
        ----------
        low, high : int
            Sizes of different programs, in order.
        is_low : callable
            Whether the program of a size is that of ``low``.
        guess : int64 array
            Ranks that are tried first.
        """
        ranks = self.rank(np.array([low, high], np.int64))
        sizes = self.between(int(ranks[0]) + 1, int(ranks[1]), 8 * max(low, high))
        sizes = np.append(sizes, high)
        known = self.rank(sizes)
        start, end = -1, sizes.size - 1
        for at in np.searchsorted(known, guess).tolist():
            inside = at <= end and not is_low(int(sizes[at]))
            if inside and (at == 0 or is_low(int(sizes[at - 1]))):
                return int(known[at])
        while end - start > 1:
            middle = (start + end) // 2
            start, end = (middle, end) if is_low(int(sizes[middle])) else (start, middle)
        return int(known[end])


@dataclass(frozen=True)
class SizeRanges:
    """Ranges of sizes whose programs differ in numbers only.

    Attributes
    ----------
    order : SizeOrder
    begins : list of int
        The ranks with which the second range, and those behind it, begin.
    kinds : list of str
        The digest of the programs of each range.
    sizes : list of (int, int)
        Samples: the first size, and the tokens in caches.
    """

    order: SizeOrder
    begins: list[int]
    kinds: list[str]
    sizes: list[tuple[int, int]]

    def of(self, first: Ints) -> Ints:
        """Return the range of each size."""
        ranks = self.order.rank(first)
        return np.searchsorted(np.array(self.begins, np.int64), ranks, side="right")

    def samples(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the samples of each range, enough of them to determine and confirm formulas."""
        which = self.of(np.array(self.sizes, np.int64)[:, 0])
        for number, (low, high) in enumerate(itertools.pairwise([0, *self.begins, _NO_RANK])):
            inside = [self.sizes[k] for k in np.flatnonzero(which == number)]
            if self.begins:
                last = 8 * max(first for first, _ in inside or self.sizes)
                inside = more_sizes(inside, self.order.between(low, high, last))
            yield inside


def ranges_of(
    order: SizeOrder,
    sizes: list[tuple[int, int]],
    kind: Callable[[int, int], str],
    few: int,
    guess: SizeRanges | None,
) -> SizeRanges:
    """Return the ranges of sizes, by the order in which programs change.

    Parameters
    ----------
    order : SizeOrder
    sizes : list of (int, int)
        Samples.
    kind : callable
        Gives the digest of the program of a size.
    few : int
        How many samples, the first ones, have few tokens; their programs may be others.
    guess : SizeRanges, optional
        The ranges of a model of other depth.
    """
    by_tokens = replace(order, slots=False)
    same_kind = [s for s in sizes[:few] if kind(*s) == kind(*sizes[few])]
    plain = _ranges(by_tokens, [*same_kind, *sizes[few:]], kind, guess)
    if not order.slots or (not plain.begins and len(same_kind) == few):
        return plain
    slotted = _ranges(order, sizes, kind, guess)
    if slotted.begins != sorted(set(slotted.begins)):
        return plain
    tried = order.between(0, _NO_RANK, 8 * max(first for first, _ in sizes))
    expected = [[r.kinds[k] for k in r.of(tried).tolist()] for r in (plain, slotted)]
    for size, left, other in zip(tried.tolist(), *expected, strict=True):
        if left != other:
            return slotted if kind(size, sizes[0][1]) == other else plain
    return plain


def _ranges(
    order: SizeOrder,
    sizes: list[tuple[int, int]],
    kind: Callable[[int, int], str],
    guess: SizeRanges | None,
) -> SizeRanges:
    """Return the ranges between samples of different programs, in an order."""
    ranks = order.rank(np.array(sizes, np.int64)[:, 0]).tolist()
    in_order = [size for _, size in sorted(zip(ranks, sizes, strict=True))]
    begins, kinds = [], [kind(*in_order[0])]
    known = np.array(guess.begins if guess and guess.order.slots == order.slots else [], np.int64)
    for lower, (high, before) in itertools.pairwise(in_order):
        if kind(*lower) == kind(high, before):
            continue
        low = kind(lower[0], before)
        if low == kind(high, before):  # it changes with the tokens in caches
            continue
        begins.append(order.change(lower[0], high, _Is(kind, before, low), known))
        kinds.append(kind(high, before))
    return SizeRanges(order, begins, kinds, sizes)


@dataclass(frozen=True)
class _Is:
    """Whether the programs of sizes are of a kind."""

    kind: Callable[[int, int], str]
    before: int
    wanted: str

    def __call__(self, first: int) -> bool:
        return self.kind(first, self.before) == self.wanted


def more_sizes(sizes: list[tuple[int, int]], inside: Ints) -> list[tuple[int, int]]:
    """Add sizes of a range, so that formulas are determined and confirmed in it.

    They are at uneven distances: slots of experts grow with tokens by steps of one, which at even
    distances may look linear.
    """
    choice = np.sort(inside)
    most = choice.size - 1
    low, last, third, late = (int(choice[k]) for k in (0, most, most * 7 // 21, most * 15 // 21))
    firsts = [low, last, third, low, last, late]
    befores = (0, 150, 1100, 5000, 700, 2600)
    return list(dict.fromkeys([*sizes, *zip(firsts, befores, strict=True)]))
