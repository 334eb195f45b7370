# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the numbers of a system with their sources, and which of them are assumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .constants import MEANINGS

if TYPE_CHECKING:
    from .system import System

NO_SOURCE = "no source is stated"
_PARTS = ("device", "intra_node", "inter_node", "host_link")


class SourcedNumber(NamedTuple):
    """A number of a system.

    Attributes
    ----------
    name : str
        Its key, as ``device.memory_bandwidth_GBps`` or ``constants.hop_us``.
    value : float or dict of str to float
        The number, or numbers by dtype.
    unit, meaning : str
        Of the constants of the cost model; other keys state them themselves.
    source : str
    """

    name: str
    value: Any
    unit: str
    meaning: str
    source: str

    @property
    def is_assumed(self) -> bool:
        """Return whether the number is assumed: the source says so, or none is stated."""
        return self.source == NO_SOURCE or self.source.lower().startswith("assumed")


def sourced_numbers(system: System) -> tuple[SourcedNumber, ...]:
    """Return all numbers of a system with their sources."""
    numbers = [
        SourcedNumber(name, value, "", "", _source(system.sources, name))
        for part in _PARTS
        for name, value in _numbers(part, getattr(system, part), bool(system.constants))
    ]
    constants = [
        SourcedNumber(
            f"constants.{name}", c.value, MEANINGS[name].unit, MEANINGS[name].meaning, c.source
        )
        for name, c in system.constants.items()
    ]
    return (*numbers, *constants)


def _numbers(part: str, value: Any, has_constants: bool) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a part of a system, without those that nobody stated."""
    if value is None:
        return
    for field in dataclasses.fields(value):
        number = getattr(value, field.name)
        if isinstance(number, str) or number == field.default:
            continue
        if field.name == "efficiency":
            rows = () if has_constants else number.items()
            for name, fractions in rows:
                yield f"{part}.efficiency.{name}", dataclasses.asdict(fractions)
        elif not (has_constants and field.name == "launch_floor_us"):
            yield f"{part}.{field.name}", dict(number) if isinstance(number, Mapping) else number


def _source(sources: Mapping[str, str], name: str) -> str:
    """Return the source of a key, or of what it is a part of."""
    while name:
        if name in sources:
            return sources[name]
        name = name.rpartition(".")[0]
    return NO_SOURCE
