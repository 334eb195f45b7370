# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Results of devices, of which most do the same: made when they are asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import overload

import numpy as np

from .lanes import DeviceResult, Lane

Alike = tuple[Sequence[int], DeviceResult]
"""Devices, and the result of one of them, which all have but for its id."""


class Devices(Sequence[DeviceResult]):
    """Results of devices, by id.

    Parameters
    ----------
    alike : iterable of (sequence of int, DeviceResult)
        Devices that have the same result but for its id.
    """

    def __init__(self, alike: Iterable[Alike]) -> None:
        self._alike = [(tuple(ids), one) for ids, one in alike]

    @property
    def distinct(self) -> tuple[DeviceResult, ...]:
        """One result of each set of devices that have the same."""
        return tuple(one for _, one in self._alike)

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self._alike)

    @functools.cached_property
    def _order(self) -> tuple[list[int], list[int]]:
        """Ids in order, and the set of each."""
        ids = np.concatenate([np.array(ids, np.int64) for ids, _ in self._alike])
        kinds = np.repeat(np.arange(len(self._alike)), [len(ids) for ids, _ in self._alike])
        order = np.argsort(ids, kind="stable")
        return ids[order].tolist(), kinds[order].tolist()

    @overload
    def __getitem__(self, place: int) -> DeviceResult: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[DeviceResult, ...]: ...

    def __getitem__(self, place: int | slice) -> DeviceResult | tuple[DeviceResult, ...]:
        if isinstance(place, slice):
            return tuple(self[k] for k in range(len(self))[place])
        ids, kinds = self._order
        return replace(self._alike[kinds[place]][1], id=ids[place])

    def __iter__(self) -> Iterator[DeviceResult]:
        for number, kind in zip(*self._order, strict=True):
            yield replace(self._alike[kind][1], id=number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"Devices({list(self)})"


def lane_devices(lanes: Iterable[Lane], found: Iterable[DeviceResult]) -> list[Alike]:
    """Devices of lanes with the result of each."""
    return [(lane.devices, one) for lane, one in zip(lanes, found, strict=True)]
