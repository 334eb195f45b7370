# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a report shows, as plain data: every writer (text, JSON, HTML) reads only this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Mesh:
    """A device mesh: axes major first, device ids row-major over them."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    device_ids: tuple[int, ...]


@dataclass(frozen=True)
class Device:
    """What one device did in a step. Times are seconds, sizes bytes."""

    id: int
    mesh: str
    compute_s: float
    comm_s: float
    exposed_comm_s: float
    idle_s: float
    peak_memory_bytes: int
    param_bytes: int
    flops: int


@dataclass(frozen=True)
class Collective:
    """All executions of one kind of collective along one mesh axis, per device.

    ``bytes_per_device`` are those of the results, ``wire_bytes_per_device`` those sent by the
    ring algorithm, both summed over ``count``. ``time_s`` is None where nobody timed it.
    """

    kind: str
    mesh: str
    mesh_axis: str
    group_size: int
    count: int
    bytes_per_device: int
    wire_bytes_per_device: int
    time_s: float | None = None

    def axis_words(self, several_meshes: bool) -> str:
        """The axis, with its mesh where there are several; of a transfer, both its ends."""
        alone = not several_meshes or "->" in self.mesh_axis
        return self.mesh_axis if alone else f"{self.mesh}: {self.mesh_axis}"


@dataclass(frozen=True)
class Event:
    """One op on one stream. ``scope`` names the functions around it, outermost first."""

    name: str
    op: str
    stream: str
    start_s: float
    duration_s: float
    scope: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Lane:
    """Devices that run the same program at the same times, shown once.

    ``memory`` holds ``(time_s, live_bytes)`` steps; ``events_total`` counts the events that
    happened where ``events`` was shortened.
    """

    mesh: str
    devices: tuple[int, ...]
    events: tuple[Event, ...]
    memory: tuple[tuple[float, int], ...]
    events_total: int = 0


@dataclass(frozen=True)
class OpTime:
    """Time of one op kind on one device, summed over its executions."""

    op: str
    count: int
    time_s: float
    flops: int
    bytes_moved: int
    bound_by: str = ""


@dataclass(frozen=True)
class FunctionTime:
    """Time of one function on one device, over all its calls, callees included."""

    name: str
    depth: int
    calls: int
    compute_s: float
    comm_s: float
    flops: int
    param_bytes: int = 0


@dataclass(frozen=True)
class Branch:
    """An ``If`` of the program, and which of its branches was simulated."""

    place: str
    taken: str
    other: str
    taken_s: float
    other_s: float


@dataclass(frozen=True)
class Parameter:
    """An input of the whole program and how it lies on its mesh."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    mesh: str
    placement: str
    whole_bytes: int
    device_bytes: int


@dataclass(frozen=True)
class Hardware:
    """The few facts of the system that a reader compares the result with."""

    name: str
    memory_capacity_bytes: int | None
    peak_flops: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Analysis:
    """One simulated step with all that a report says about it.

    ``ops`` and ``functions`` are those of the devices that ``focus`` names.
    """

    model: str
    command: str
    engine: str
    time_s: float
    peak_memory_bytes: int
    hardware: Hardware
    meshes: tuple[Mesh, ...]
    devices: tuple[Device, ...]
    collectives: tuple[Collective, ...]
    unmodelled_ops: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    lanes: tuple[Lane, ...] = ()
    ops: tuple[OpTime, ...] = ()
    functions: tuple[FunctionTime, ...] = ()
    focus: str = ""
    parameters: tuple[Parameter, ...] = ()
    plan: Mapping[str, Any] | None = None
    strategy: str | None = None
    batch: int | None = None
    assumptions: tuple[str, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The model without the folders of its path."""
        return self.model if self.model.startswith("zoo:") else self.model.rpartition("/")[2]

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of one device, in bytes; None where the system does not say."""
        return self.hardware.memory_capacity_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the fullest device's peak is within its memory; None where unknown."""
        if self.capacity_bytes is None:
            return None
        return self.peak_memory_bytes <= self.capacity_bytes

    @property
    def slowest(self) -> Device:
        """The device that is busy the longest (the first of several)."""
        return max(self.devices, key=lambda d: d.compute_s + d.exposed_comm_s)

    @property
    def bound_by(self) -> str:
        """What most of the busiest device's step goes to: compute, communication or waiting."""
        device = self.slowest
        shares = {
            "compute": device.compute_s,
            "communication": device.exposed_comm_s,
            "waiting": device.idle_s,
        }
        return max(shares, key=lambda kind: shares[kind])
