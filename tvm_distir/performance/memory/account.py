# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Account for the memory of a device at its peak, by category and by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

CATEGORIES = tuple(
    "weights states gradients stashes communication temporaries inputs results".split()
)
"""Weights and constants; states of the optimizer; gradients of weights; what forward keeps for
backward; what collectives and messages make; what is left over of ops; data; what a program
returns that replaces nothing."""

WEIGHTS, STATES, GRADIENTS, STASHES, COMMUNICATION, TEMPORARIES, INPUTS, RESULTS = range(8)
"""Numbers of :data:`CATEGORIES`."""

VALUE_CATEGORIES = {
    "weight": WEIGHTS, "constant": WEIGHTS, "state": STATES, "gradient": GRADIENTS, "input": INPUTS,
}  # fmt: skip
"""The memory category that the role of a value decides."""

NAMED = 10
"""The maximum number of holders that are named."""


class Label(NamedTuple):
    """Name of a buffer: its value, its producer (op or function), the place and the unit."""

    what: str
    maker: str
    function: str
    unit: str = ""


class LiveBuffer(NamedTuple):
    """Buffer that is live at the peak."""

    label: Label
    role: int
    bytes: int


@dataclass(frozen=True)
class BufferGroup:
    """Group of like buffers that are live at the peak.

    Attributes
    ----------
    what : str
        Name of the value; numbers that differ among several are ``*``.
    role : str
        The category, from :data:`CATEGORIES`.
    function : str
        The function that makes them; empty for values that exist from the beginning.
    unit : str
        The unit of a schedule that made them, or for which they arrived; empty without a unit.
    bytes : int
        The bytes of all of them.
    count : int
    """

    what: str
    role: str
    function: str
    unit: str
    bytes: int
    count: int


@dataclass(frozen=True)
class MemoryAccount:
    """Memory that a device holds at its peak.

    Attributes
    ----------
    allocator : str
    peak_bytes : int
        Most that lives at once, in whole blocks.
    fragmentation_bytes : int
        The additional bytes that best-fit placement of the blocks takes.
    moment : str
        The moment of the peak: unit, and function and op.
    at_peak : mapping of str to int
        Bytes by category at the peak: they add up to it.
    most : mapping of str to int
        Most bytes of each category at any time, each for itself.
    holders : tuple of BufferGroup
        The largest groups at the peak in descending order, at most :data:`NAMED`.
    host_bytes : int
        Most that it keeps in the host's memory.
    """

    allocator: str
    peak_bytes: int
    fragmentation_bytes: int
    moment: str
    at_peak: Mapping[str, int]
    most: Mapping[str, int]
    holders: tuple[BufferGroup, ...]
    host_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name, ``host_bytes`` where there are some."""
        entry = {**asdict(self), "holders": list(map(asdict, self.holders))}
        if not self.host_bytes:
            del entry["host_bytes"]
        return entry


def by_category(sizes: Iterable[int]) -> dict[str, int]:
    """Return the bytes by name in the order of :data:`CATEGORIES`, without empty categories."""
    return {category: size for category, size in zip(CATEGORIES, sizes, strict=True) if size}


def category_sums(buffers: Iterable[LiveBuffer]) -> list[int]:
    """Return the bytes by number of category."""
    sums = [0] * len(CATEGORIES)
    for buffer in buffers:
        sums[buffer.role] += buffer.bytes
    return sums


def holders(buffers: Iterable[LiveBuffer]) -> tuple[BufferGroup, ...]:
    """Group buffers of the same producer, category and size whose names differ in numbers."""
    groups: dict[tuple[Label, int, int], list[str]] = {}
    for label, category, size in buffers:
        same = label._replace(what=_pattern(label.what)), category, size
        groups.setdefault(same, []).append(label.what)
    joined = [
        BufferGroup(
            _name(names),
            CATEGORIES[category],
            label.function,
            label.unit,
            size * len(names),
            len(names),
        )
        for (label, category, size), names in groups.items()
    ]
    # Buffers come in no defined order: groups of equal size are ordered by all that names them.
    joined.sort(key=lambda g: (-g.bytes, g.what, g.role, g.function, g.unit))
    return tuple(joined[:NAMED])


@functools.lru_cache(maxsize=1 << 14)
def _pattern(name: str) -> str:
    """Return a name with ``*`` for its numbers, as ranks share names."""
    return re.sub(r"\d+", "*", name)


def _name(names: list[str]) -> str:
    """Return the common form of names, with ``*`` for numbers that differ."""
    if len(names) == 1:
        return names[0]
    columns = zip(*[re.split(r"(\d+)", name) for name in names], strict=True)
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in columns)
