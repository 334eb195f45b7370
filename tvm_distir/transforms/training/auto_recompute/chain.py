# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimize the extra time of a chain of calls within a memory bound by dynamic programming.

Calls run forward 1, 2, ... n and backward n, ... 2, 1. The stash of call j is live from its
forward to its backward pass, so that the saved values at any moment are those of the calls 1..i for
some i. After i calls only the saved bytes, the most needed bytes and the time so far matter: a
choice that is worse in none of these dominates. Where no other values take as much as these calls
do, it is known at once whether the needed bytes fit, and they do not matter later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

MOST_WAYS = 1 << 14
"""Ways that are followed; where there are more, bytes are rounded up to fewer distinct sums."""


@dataclass(frozen=True)
class CallOption:
    """Option of a call.

    Attributes
    ----------
    policy : str
    time : int
        The time of recomputation.
    kept_bytes : int
        Kept from the forward to the backward pass.
    forward_bytes, backward_bytes : int
        Largest memory inside the two parts beside what other calls keep and others hold: of the
        forward pass its values, of the backward pass what it was kept as well.
    later_bytes : int
        Handed on to the gradients of weights, where these are made later.
    """

    policy: str
    time: int
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int
    later_bytes: int = 0

    def is_no_worse(self, other: CallOption) -> bool:
        """Return whether the option takes neither more time nor more memory than another one."""
        mine, others = astuple(self)[1:], astuple(other)[1:]
        return all(a <= b for a, b in zip(mine, others, strict=True))


@dataclass(frozen=True)
class ChainCall:
    """Call of the chain.

    Attributes
    ----------
    options : tuple of CallOption
        The options, of which there is at least a single option.
    before_forward, before_backward : int
        Bytes that others than the calls' kept values take when the two parts are called.
    """

    options: tuple[CallOption, ...]
    before_forward: int
    before_backward: int

    def beside(self, size_bytes: int) -> ChainCall:
        """Return the same call beside additional live bytes."""
        before = self.before_forward + size_bytes, self.before_backward + size_bytes
        return ChainCall(self.options, *before)

    def inside(self, option: CallOption, gap: int) -> int:
        """Return the peak of both passes under an option, and of the gap behind the call."""
        return max(
            self.before_forward + option.forward_bytes,
            self.before_backward + option.backward_bytes,
            option.kept_bytes + gap,
        )


class PartialChoice(NamedTuple):
    """Choice of options for a prefix of the calls.

    Attributes
    ----------
    kept_bytes : int
        The bytes that all calls save.
    need_bytes : int
        Most at any moment so far, of what they keep and of what others take; 0 where it is known
        to fit.
    time : int
    """

    kept_bytes: int
    need_bytes: int
    time: int
    rank: int  # of equals the first wins: later calls keep more
    option: int
    before: PartialChoice | None

    def options(self, links: Sequence[ChainCall]) -> list[CallOption]:
        """Return the option of each call."""
        chosen: list[CallOption] = []
        way = self
        for link in reversed(links):
            chosen.append(link.options[way.option])
            way = way.before or way
        return chosen[::-1]


Fits = Callable[[int, int], bool]
"""Whether so many bytes kept, and so many needed at some moment, are no more than there are."""


def least_time(
    links: Sequence[ChainCall], gaps: Sequence[int], bound: int
) -> list[CallOption] | None:
    """Choose an option for each call, or return None if no choice fits.

    Parameters
    ----------
    links : sequence of ChainCall
    gaps : sequence of int
        The memory between calls, ``gaps[i]``: the most bytes that other values take at any moment
        at which exactly the first i calls have saved values; there is one more gap than links.
    bound : int
        Most memory at any moment.
    """
    choices = all_ways(links, gaps, lambda _, need: need <= bound, bound, is_final=True)
    if not choices:
        return None
    return min(choices, key=lambda way: (way.time, way.kept_bytes)).options(links)


def all_ways(
    links: Sequence[ChainCall],
    gaps: Sequence[int],
    fits: Fits,
    most: int,
    *,
    is_final: bool = False,
) -> list[PartialChoice]:
    """Return the Pareto-optimal choices by saved bytes, needed bytes and time.

    Parameters
    ----------
    links, gaps : sequences of ChainCall and int
        The chain, as for :func:`least_time`.
    fits : callable
        A predicate of a partial choice; choices that do not fit are not extended.
    most : int
        Memory, by a part of which bytes are rounded up where ways are many.
    is_final : bool
        Whether what fits once needs no more: others do not keep as much as these calls do.
    """

    def known(need: int) -> int:
        return 0 if is_final else need

    choices = [PartialChoice(0, known(gaps[0]), 0, 0, -1, None)] if fits(0, gaps[0]) else []
    for link, gap in zip(links, gaps[1:], strict=True):
        candidates = [
            way for way in _followed(choices, link, gap) if fits(way.kept_bytes, way.need_bytes)
        ]
        candidates = [way._replace(need_bytes=0) for way in candidates] if is_final else candidates
        choices = _coarser(_best(candidates), most)
    return choices


def least_bytes(links: Sequence[ChainCall], gaps: Sequence[int]) -> int:
    """Return the smallest bound within which some choice fits.

    From the last call to the first, it is what calls need beside all that is kept before them.
    """
    least = 0
    for link, gap in reversed(list(zip(links, gaps[1:], strict=True))):
        least = min(max(link.inside(o, gap), o.kept_bytes + least) for o in link.options)
    return max(gaps[0], least)


def _followed(choices: Sequence[PartialChoice], link: ChainCall, gap: int) -> list[PartialChoice]:
    """Extend choices by a call."""
    order = sorted(range(len(link.options)), key=lambda k: -link.options[k].kept_bytes)
    candidates = []
    for rank, number in enumerate(order):
        option = link.options[number]
        inside = link.inside(option, gap)
        for way in choices:
            kept_bytes, time = way.kept_bytes + option.kept_bytes, way.time + option.time
            need_bytes = max(way.need_bytes, way.kept_bytes + inside)
            candidates.append(PartialChoice(kept_bytes, need_bytes, time, rank, number, way))
    return candidates


def _best(choices: list[PartialChoice]) -> list[PartialChoice]:
    """Return the choices that no other dominates."""
    choices.sort(key=lambda way: way[:4])
    result: list[PartialChoice] = []
    needs: list[int] = []  # of the choices so far, rising, while times fall
    times: list[int] = []
    for way in choices:
        position = bisect_right(needs, way.need_bytes)
        if position and times[position - 1] <= way.time:
            continue
        result.append(way)
        last = first = (
            position - 1 if position and needs[position - 1] == way.need_bytes else position
        )
        while last < len(times) and times[last] >= way.time:
            last += 1
        needs[first:last], times[first:last] = [way.need_bytes], [way.time]
    return result


def _coarser(choices: list[PartialChoice], most: int) -> list[PartialChoice]:
    """Return at most :data:`MOST_WAYS` of the choices, with bytes rounded up."""
    unit = 1
    while len(choices) > MOST_WAYS:
        unit = max(2 * unit, most // MOST_WAYS)
        choices = _best(
            [
                way._replace(
                    kept_bytes=-(-way.kept_bytes // unit) * unit,
                    need_bytes=-(-way.need_bytes // unit) * unit,
                )
                for way in choices
            ]
        )
    return choices
