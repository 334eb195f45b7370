# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute results of devices lazily, shared by devices that do the same."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, overload

import numpy as np

from .device_results import DeviceGroupResult, DeviceResult
from .op_records import seconds


class DeviceWork(NamedTuple):
    """Work of a device: times of computing, communicating and both, and the step's end.

    In picoseconds; and its arithmetic operations.
    """

    compute_ps: int
    comm_ps: int
    both_ps: int
    finish_ps: int
    flops: int

    @property
    def idle_ps(self) -> int:
        """Time in which it does neither."""
        return self.finish_ps - self.compute_ps - self.comm_ps + self.both_ps

    def of(self, lane: DeviceGroupResult) -> DeviceResult:
        """Return the result of the first device of a lane."""
        memory = lane.held()
        return DeviceResult(
            lane.devices[0],
            lane.mesh,
            seconds(self.compute_ps),
            seconds(self.comm_ps),
            seconds(self.comm_ps - self.both_ps),
            seconds(self.idle_ps),
            memory.account.peak_bytes,
            memory.param_bytes,
            self.flops,
            lane.memory_capacity_bytes,
        )


class Devices(Sequence[DeviceResult]):
    """Results of devices, by id.

    Parameters
    ----------
    device_groups : sequence of DeviceGroupResult
        Devices that have the same result but for its id.
    works : sequence of DeviceWork
        The work of each device of each lane.
    """

    def __init__(
        self, device_groups: Sequence[DeviceGroupResult], works: Sequence[DeviceWork]
    ) -> None:
        self._lanes, self._works = device_groups, works

    @functools.cached_property
    def distinct(self) -> tuple[DeviceResult, ...]:
        """Return a result of each set of devices that have the same result."""
        pairs = zip(self._lanes, self._works, strict=True)
        return tuple(work.of(lane) for lane, work in pairs)

    def on(self, device_groups: Sequence[DeviceGroupResult]) -> Devices:
        """Return the group's work on the devices of other lanes."""
        return Devices(device_groups, self._works)

    def __len__(self) -> int:
        return sum(len(lane.devices) for lane in self._lanes)

    @functools.cached_property
    def _order(self) -> tuple[list[int], list[int]]:
        """Return the ids in order, and the set of each."""
        ids = np.concatenate([np.array(lane.devices, np.int64) for lane in self._lanes])
        kinds = np.repeat(np.arange(len(self._lanes)), [len(lane.devices) for lane in self._lanes])
        order = np.argsort(ids, kind="stable")
        return ids[order].tolist(), kinds[order].tolist()

    @overload
    def __getitem__(self, position: int) -> DeviceResult: ...

    @overload
    def __getitem__(self, position: slice) -> tuple[DeviceResult, ...]: ...

    def __getitem__(self, position: int | slice) -> DeviceResult | tuple[DeviceResult, ...]:
        if isinstance(position, slice):
            return tuple(self[k] for k in range(len(self))[position])
        ids, kinds = self._order
        return replace(self.distinct[kinds[position]], id=ids[position])

    def __iter__(self) -> Iterator[DeviceResult]:
        for number, kind in zip(*self._order, strict=True):
            yield replace(self.distinct[kind], id=number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"Devices({list(self)})"
