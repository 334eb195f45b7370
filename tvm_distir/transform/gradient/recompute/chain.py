# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The least extra time of a chain of calls under a memory bound, by dynamic programming.

Calls run forward 1, 2, ... n and backward n, ... 2, 1. What call j keeps lives from its forward to
its backward part, so that what is kept at any moment is that of the calls 1..i for some i. After i
calls only the bytes kept and the time so far matter: of two ways with both not larger the other is
never better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_WAYS = 1 << 14
"""Ways that are followed; where there are more, bytes are rounded up to fewer distinct sums."""


@dataclass(frozen=True)
class Option:
    """What a call may do.

    Attributes
    ----------
    policy : str
    time : int
        Of what is made again.
    kept_bytes : int
        Kept from the forward to the backward part.
    forward_bytes, backward_bytes : int
        Largest memory inside the two parts beside what other calls keep and others hold: of the
        forward part its values, of the backward part what it was kept as well.
    """

    policy: str
    time: int
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int


@dataclass(frozen=True)
class Link:
    """A call of the chain.

    Attributes
    ----------
    options : tuple of Option
        At least one.
    before_forward, before_backward : int
        Bytes that others than the calls' kept values take when the two parts are called.
    """

    options: tuple[Option, ...]
    before_forward: int
    before_backward: int


class _Way(NamedTuple):
    kept_bytes: int
    time: int
    rank: int  # of equals the first wins: later calls keep more
    option: int
    before: _Way | None


def least_time(links: Sequence[Link], gaps: Sequence[int], bound: int) -> list[Option] | None:
    """Choose an option for each call; None where no choice fits.

    Parameters
    ----------
    links : sequence of Link
    gaps : sequence of int
        ``gaps[i]``: most that others take at any moment between calls at which exactly the first
        i calls keep something; one more than links.
    bound : int
        Most memory at any moment.
    """
    ways = [_Way(0, 0, 0, -1, None)] if gaps[0] <= bound else []
    for link, gap in zip(links, gaps[1:], strict=True):
        ways = _coarser(_best(_followed(ways, link, gap, bound)), bound)
    if not ways:
        return None
    way = min(ways, key=lambda one: (one.time, one.kept_bytes))
    chosen: list[Option] = []
    for link in reversed(links):
        chosen.append(link.options[way.option])
        way = way.before or way
    return chosen[::-1]


def least_bytes(links: Sequence[Link], gaps: Sequence[int]) -> int:
    """The smallest bound under which some choice fits."""
    low, high = (
        -1,
        max(gaps)
        + sum(
            max(link.before_forward, link.before_backward)
            + max(o.kept_bytes + o.forward_bytes + o.backward_bytes for o in link.options)
            for link in links
        ),
    )
    while high - low > 1:
        middle = (low + high) // 2
        if least_time(links, gaps, middle) is None:
            low = middle
        else:
            high = middle
    return high


def _followed(ways: Sequence[_Way], link: Link, gap: int, bound: int) -> list[_Way]:
    """Ways with one call more."""
    order = sorted(range(len(link.options)), key=lambda k: -link.options[k].kept_bytes)
    found = []
    for rank, number in enumerate(order):
        option = link.options[number]
        inside = max(
            link.before_forward + option.forward_bytes,
            link.before_backward + option.backward_bytes,
        )
        found += [
            _Way(way.kept_bytes + option.kept_bytes, way.time + option.time, rank, number, way)
            for way in ways
            if way.kept_bytes + inside <= bound
            and way.kept_bytes + option.kept_bytes + gap <= bound
        ]
    return found


def _best(ways: list[_Way]) -> list[_Way]:
    """Those for which no other keeps and takes no more."""
    ways.sort(key=lambda way: way[:3])
    found: list[_Way] = []
    for way in ways:
        if not found or way.time < found[-1].time:
            found.append(way)
    return found


def _coarser(ways: list[_Way], bound: int) -> list[_Way]:
    """At most :data:`MOST_WAYS` of them, bytes rounded up."""
    unit = 1
    while len(ways) > MOST_WAYS:
        unit = max(2 * unit, bound // MOST_WAYS)
        ways = _best([way._replace(kept_bytes=-(-way.kept_bytes // unit) * unit) for way in ways])
    return ways
