# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a simulation found. Times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class DeviceResult:
    """What one device did.

    Attributes
    ----------
    id : int
    mesh : str
    compute_s : float
        Time in which its compute stream runs.
    comm_s : float
        Time in which at least one of its communications runs.
    exposed_comm_s : float
        The part of ``comm_s`` in which nothing is computed.
    idle_s : float
        The rest: ``compute_s + exposed_comm_s + idle_s`` is the time of the step.
    peak_memory_bytes, param_bytes : int
        Most live bytes; bytes of weights and constants.
    flops : int
    """

    id: int
    mesh: str
    compute_s: float
    comm_s: float
    exposed_comm_s: float
    idle_s: float
    peak_memory_bytes: int
    param_bytes: int
    flops: int

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Collective:
    """All executions of one kind of collective along the same axes, on each device.

    Attributes
    ----------
    kind : str
        The op's word; ``send`` for a transfer, counted where it arrives.
    mesh : str
    mesh_axis : str
        Axis names joined by ``,``; ``mesh0->mesh1`` for a transfer.
    group_size : int
        For a transfer, the devices it arrives on.
    count : int
    bytes_per_device, wire_bytes_per_device : int
        Of the results, and sent by the ring algorithm, summed over ``count``.
    time_s : float
        Sum of the durations.
    """

    kind: str
    mesh: str
    mesh_axis: str
    group_size: int
    count: int
    bytes_per_device: int
    wire_bytes_per_device: int
    time_s: float

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name, without the time."""
        return {key: value for key, value in self.__dict__.items() if key != "time_s"}


@dataclass(frozen=True)
class Event:
    """One task of one device. ``stream`` is ``compute``, ``comm``, ``send`` or ``recv``.

    ``args`` has ``op``, ``binding``, ``scope``, ``bound_by``, and ``flops`` and ``bytes`` or
    ``payload_bytes``, ``wire_bytes`` and ``group_size``.
    """

    device: int
    stream: str
    name: str
    start_s: float
    duration_s: float
    args: Mapping[str, Any]


@dataclass(frozen=True)
class OpTime:
    """All executions of one compute op on one device. ``bound_by``: what most of its time is."""

    op: str
    count: int
    time_s: float
    flops: int
    bytes_moved: int
    bound_by: str


@dataclass(frozen=True)
class FunctionTime:
    """All calls of one function on one device, its callees included.

    ``depth`` is that of its first call (0 for the entry).
    """

    name: str
    depth: int
    calls: int
    compute_s: float
    comm_s: float
    flops: int


@dataclass(frozen=True)
class Branch:
    """An ``If``: the dearer branch is simulated.

    Attributes
    ----------
    place : str
        ``function/binding``.
    taken, other : str
        The functions of the branches.
    taken_s, other_s : float
        Sums of the times of their ops.
    """

    place: str
    taken: str
    other: str
    taken_s: float
    other_s: float

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Lane:
    """Devices that do the same at the same times.

    Attributes
    ----------
    mesh : str
    devices : tuple of int
    memory : tuple of (time_s, live_bytes)
        Live memory from each time on.
    ops : tuple of OpTime
        By time, the longest first.
    functions : tuple of FunctionTime
        In order of the first call.
    timeline : Timeline
        Source of the events.
    """

    mesh: str
    devices: tuple[int, ...]
    memory: tuple[tuple[float, int], ...]
    ops: tuple[OpTime, ...]
    functions: tuple[FunctionTime, ...]
    timeline: Any = field(repr=False, compare=False)

    @property
    def events_total(self) -> int:
        """Number of events."""
        return len(self.timeline)

    def events(self) -> Iterator[Event]:
        """Events of the first of the devices, in order of issue."""
        yield from self.timeline


@dataclass(frozen=True)
class Result:
    """A simulated step.

    Attributes
    ----------
    system : str
        Name of the system.
    time_s : float
        From the start to the end of the last task.
    peak_memory_bytes : int
        On the fullest device.
    memory_capacity_bytes : int
        Of one device of the system.
    devices : tuple of DeviceResult
        All of them, by id.
    collectives : tuple of Collective
        Sorted by mesh, kind, axes and group size.
    unmodelled_ops : tuple of str
        Ops whose work is not known (their time is that of moving their operands).
    branches : tuple of Branch
        The ``If`` of the program, and which way they go.
    lanes : tuple of Lane
        Devices that behave alike, once.
    engine : str
        The event loop: ``native`` or ``reference``.
    timings_s : mapping of str to float
        Wall-clock seconds of the simulation's own stages.
    """

    system: str
    time_s: float
    peak_memory_bytes: int
    memory_capacity_bytes: int
    devices: tuple[DeviceResult, ...]
    collectives: tuple[Collective, ...]
    unmodelled_ops: tuple[str, ...]
    lanes: tuple[Lane, ...]
    engine: str
    timings_s: Mapping[str, float]
    branches: tuple[Branch, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every device's peak is within its memory."""
        return self.peak_memory_bytes <= self.memory_capacity_bytes

    @property
    def events(self) -> Iterator[Event]:
        """Events of the first device of every lane."""
        for lane in self.lanes:
            yield from lane.events()

    @property
    def memory_timeline(self) -> dict[int, tuple[tuple[float, int], ...]]:
        """Live memory over time of the first device of every lane."""
        return {lane.devices[0]: lane.memory for lane in self.lanes}

    def to_dict(self) -> dict[str, Any]:
        """Give the content of the JSON of ``tvm-distir simulate``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "system": self.system,
            "time_s": self.time_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory_capacity_bytes": self.memory_capacity_bytes,
            "fits": self.fits,
            "devices": [device.to_dict() for device in self.devices],
            "collectives": [one.to_dict() for one in self.collectives],
            "unmodelled_ops": list(self.unmodelled_ops),
            "branches": [branch.to_dict() for branch in self.branches],
            "engine": self.engine,
            "timings_s": dict(self.timings_s),
        }

    def to_perfetto(self, path: str | Path) -> None:
        """Write a trace for https://ui.perfetto.dev (Chrome JSON), whole or not at all.

        Raises
        ------
        UsageError
            DIST0153 when the file cannot be written.
        """
        from .trace import write_trace

        write_trace(self, path)
