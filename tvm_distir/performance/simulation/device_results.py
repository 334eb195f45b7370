# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hold results of a simulation by device, collective and lane, in seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tvm_distir.performance.event_loop.function_summaries import Ints
from tvm_distir.performance.memory.account import MemoryAccount
from tvm_distir.performance.traces.records import (
    Event,
    MessageRecords,
    OpRecords,
    Task,
    TracedDevices,
    titled,
)


@dataclass(frozen=True)
class DeviceResult:
    """Result of a device.

    Attributes
    ----------
    id : int
    mesh : str
    compute_s : float
        Time in which its compute stream runs.
    comm_s : float
        The time in which at least a single communication of the device runs.
    exposed_comm_s : float
        The part of ``comm_s`` in which nothing is computed.
    idle_s : float
        The rest: ``compute_s + exposed_comm_s + idle_s`` is the time of the step.
    peak_memory_bytes, param_bytes : int
        Most live bytes; bytes of weights and constants.
    flops : int
    memory_capacity_bytes : int
        Its memory.
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
    memory_capacity_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class CollectiveTotal:
    """Total of all executions of a kind of collective along the same axes, per device.

    Attributes
    ----------
    kind : str
        The op's word; ``send`` for a transfer, counted where it arrives; ``store`` and ``fetch``
        for stashes on their way to the host's memory and back.
    mesh : str
    mesh_axis : str
        Axis names joined by ``,``; ``mesh0->mesh1`` for a transfer; ``host``.
    group_size : int
        The number of devices in a group; of a transfer, the devices at which it arrives.
    count : int
    bytes_per_device, wire_bytes_per_device : int
        The bytes of the results, and the bytes sent by the ring algorithm, summed over ``count``.
        Of a message that is sent in parts, the bytes that each device sends.
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


HOST_MODULE = "(host)"
"""The module of the work of the host between kernels."""


@dataclass(frozen=True)
class OpTime:
    """Time of all executions of a compute op in a module and pass on a device.

    ``module`` and ``phase`` are those of :class:`ModuleTime`; ``bound_by`` is its main bound.
    """

    op: str
    module: str
    phase: str
    count: int
    time_s: float
    flops: int
    bytes_moved: int
    bound_by: str

    @property
    def title(self) -> str:
        """Return the op with its module."""
        return titled(self.op, self.module if self.module != HOST_MODULE else "")


@dataclass(frozen=True)
class ModuleTime:
    """Time of a module in a pass on a device.

    Attributes
    ----------
    module : str
        The path with numbers as ``*``, empty for what no module holds.
    phase : str
        ``forward``, ``backward`` or ``optimizer``.
    compute_s, comm_s : float
        Sums of the times of its kernels, and of its collectives, which kernels may overlap.
    flops : int
    """

    module: str
    phase: str
    compute_s: float
    comm_s: float
    flops: int


@dataclass(frozen=True)
class Branch:
    """Branch of an ``If``; the more expensive side is simulated.

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


class DeviceMemory(NamedTuple):
    """Memory of a device.

    Attributes
    ----------
    curve : tuple of (time_s, live_bytes)
        Live memory from each time on.
    account : MemoryAccount
        The account of the memory at the peak.
    param_bytes : int
        Weights and constants.
    """

    curve: tuple[tuple[float, int], ...]
    account: MemoryAccount
    param_bytes: int


class DeviceTimeline(Protocol):
    """Timeline of a device: the only view that accounts, events and traces have of an engine."""

    def __len__(self) -> int:
        """Return the number of events."""

    def __iter__(self) -> Iterator[Event]:
        """Yield the events, in order of issue."""

    def counts(self) -> Ints:
        """Return how often each row of the lowering is run."""

    def busy(self) -> tuple[int, int, int]:
        """Return the time in which the device computes, communicates, and does both."""

    def sheets(self) -> Iterator[OpRecords]:
        """Yield the ops but for messages and copies."""

    def messages(self) -> Iterator[MessageRecords]:
        """Yield messages and copies, by their streams."""

    def tasks(self) -> list[Task]:
        """Return the ops, messages and copies, with the tasks that they wait for."""


@dataclass(frozen=True)
class DeviceGroupResult:
    """Group of devices that do the same at the same times.

    Attributes
    ----------
    mesh : str
    devices : tuple of int
    timeline : DeviceTimeline
    held : callable giving DeviceMemory
        A function that computes the memory when it is first asked for.
    peak_of : callable giving int
        A function that computes the peak of the memory alone, in bytes.
    op_times : callable giving tuple of OpTime
        A function that computes the times of ops when they are first asked for.
    module_times : callable giving tuple of ModuleTime
        A function that computes the times of modules when they are first asked for.
    bound_times : callable giving mapping
        A function that computes the seconds of compute ops by title, then by what bounds them.
    kernels : mapping of (str, str) to float
        Seconds of kernels, and of the work of the host, by class and the type of their arithmetic.
    products : mapping of str to int
        FLOPs of matrix products, convolutions and attention on each device, by the type of their
        arithmetic.
    products_s : float
        The time of these on each device.
    memory_capacity_bytes : int
        The memory of each device.
    """

    mesh: str
    devices: tuple[int, ...]
    timeline: DeviceTimeline = field(repr=False, compare=False)
    held: Callable[[], DeviceMemory] = field(repr=False, compare=False)
    peak_of: Callable[[], int] = field(repr=False, compare=False)
    op_times: Callable[[], tuple[OpTime, ...]] = field(repr=False, compare=False)
    module_times: Callable[[], tuple[ModuleTime, ...]] = field(repr=False, compare=False)
    bound_times: Callable[[], Mapping[str, Mapping[str, float]]] = field(repr=False, compare=False)
    kernels: Mapping[tuple[str, str], float] = field(default_factory=dict)
    products: Mapping[str, int] = field(default_factory=dict)
    products_s: float = 0.0
    memory_capacity_bytes: int = 0

    @property
    def ops(self) -> tuple[OpTime, ...]:
        """Compute ops by time, the longest first."""
        return self.op_times()

    @property
    def modules(self) -> tuple[ModuleTime, ...]:
        """Return the times of modules by pass, in order of their first op."""
        return self.module_times()

    @property
    def memory(self) -> tuple[tuple[float, int], ...]:
        """Return the live memory: time in seconds and bytes from then on."""
        return self.held().curve

    @property
    def account(self) -> MemoryAccount:
        """Return the buffers that hold memory at the peak."""
        return self.held().account

    @property
    def events_total(self) -> int:
        """Number of events."""
        return len(self.timeline)

    def events(self) -> Iterator[Event]:
        """Yield the events of the first of the devices, in order of issue."""
        yield from self.timeline

    def traced(self) -> TracedDevices:
        """Return the devices from which traces are written."""
        timeline = self.timeline
        return TracedDevices(
            self.mesh,
            self.devices,
            timeline.sheets,
            timeline.messages,
            timeline.tasks,
            lambda: self.memory,
            self.events,
        )
