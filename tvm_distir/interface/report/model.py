# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the data of a report, which all writers (text, JSON, HTML) share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm_distir.hardware import SourcedNumber
from tvm_distir.performance import (
    Branch,
    CollectiveTotal,
    DeviceResult,
    MemoryAccount,
    ModuleTime,
    OpTime,
    PathPart,
    PipelineResult,
    StepFlops,
    Verdict,
)
from tvm_distir.planning import ErrorBand, TrainingRun
from tvm_distir.support import lists_by_key

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ReportMesh:
    """A device mesh: axes major first, device ids row-major over them."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    device_ids: tuple[int, ...]


@dataclass(frozen=True)
class ReportEvent:
    """An op on a stream. ``title`` is the op with its module, ``scope`` the enclosing functions."""

    name: str
    op: str
    stream: str
    start_s: float
    duration_s: float
    scope: str = ""
    detail: str = ""
    title: str = ""


@dataclass(frozen=True)
class ReportLane:
    """A group of devices with the same program and times, shown once.

    ``memory`` holds ``(time_s, live_bytes)`` steps; ``events_total`` counts the events that
    happened where ``events`` was shortened.
    """

    mesh: str
    devices: tuple[int, ...]
    events: Sequence[ReportEvent]
    memory: tuple[tuple[float, int], ...]
    events_total: int = 0
    account: MemoryAccount | None = None
    capacity_bytes: int | None = None


@dataclass(frozen=True)
class ReportParameter:
    """An input of the whole program and its placement."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    mesh: str
    placement: str
    full_bytes: int
    device_bytes: int


@dataclass(frozen=True)
class LinkUse:
    """The traffic over a tier of the network.

    Attributes
    ----------
    name : str
    part : str
        The part of the system: ``intra_node``, ``inter_node``, ``host_link`` or ``tiers``.
    per : str
        Of what the bytes and the rate are: a ``device``, or a ``node`` whose adapters its devices
        share.
    kinds : tuple of str
        The collectives that move it.
    bytes : int
        What one of these sends over the tier in a step.
    time_s : float
        What the collectives take.
    rate_bytes_per_s : float
        What the links that are used carry at most, in one direction.
    """

    name: str
    part: str
    per: str
    kinds: tuple[str, ...]
    bytes: int
    time_s: float
    rate_bytes_per_s: float


@dataclass(frozen=True)
class Hardware:
    """The few facts of the system that a reader compares the result with.

    ``peak_flops`` is that of ``dtype``, of several types the mean of :func:`.collect.hardware_of`,
    and ``roof_flops`` that of the fastest; ``numbers`` are those of the system that the step uses,
    with their sources, and ``assumed_share`` is the share of the step's time in kernels and exposed
    communication that assumed ones of them determine.
    """

    name: str
    memory_capacity_bytes: int | None
    peak_flops: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    facts: tuple[tuple[str, str], ...] = ()
    dtype: str = ""
    numbers: tuple[SourcedNumber, ...] = ()
    assumed_share: float = 0.0
    price_per_device_hour_usd: float | None = None
    watts_per_device: float | None = None
    roof_flops: float | None = None


@dataclass(frozen=True)
class TriedChange:
    """A change of what was asked for that was simulated.

    Attributes
    ----------
    part : str
        Of the step, as :attr:`Analysis.spent_s` calls it, that it was to lessen; ``fit``: memory.
    change : str
        Options of the command, or words.
    time_s : float
        Of its step.
    gain : float
        How often as many samples per second it does.
    samples : int
        How often as many samples its step has.
    devices, peak_memory_bytes : int
    fits : bool or None
    """

    part: str
    change: str
    time_s: float
    gain: float
    samples: int
    devices: int
    peak_memory_bytes: int
    fits: bool | None


@dataclass(frozen=True)
class Analysis:
    """A simulated step with all data of a report.

    ``ops`` and ``modules`` are those of the devices that ``focus`` names. ``trials`` are changes
    that were simulated, ``untried`` parts of the step and changes that may lessen them. ``tokens``
    are those of a step, where the model has a token input; ``flops`` those of the module before it
    is distributed. ``stack`` and ``kernels`` are the names of the stack and of the kernel profile,
    and ``band`` how far measured steps were from predictions. ``notes``, what the file of the model
    asks for that the model does not have and stated options that the stack pins otherwise, are in
    the head of the report.
    """

    model: str
    command: str
    time_s: float
    peak_memory_bytes: int
    hardware: Hardware
    meshes: tuple[ReportMesh, ...]
    devices: Sequence[DeviceResult]
    collectives: tuple[CollectiveTotal, ...]
    unmodelled_ops: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    timelines: tuple[ReportLane, ...] = ()
    ops: tuple[OpTime, ...] = ()
    modules: tuple[ModuleTime, ...] = ()
    focus: str = ""
    parameters: tuple[ReportParameter, ...] = ()
    plan: Mapping[str, object] | None = None
    strategy: str | None = None
    batch: int | None = None
    tokens: int | None = None
    flops: StepFlops | None = None
    kernels: str = "eager"
    stack: str | None = None
    band: ErrorBand | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    run: TrainingRun = field(default_factory=TrainingRun)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    pipeline: PipelineResult | None = None
    verdict: Verdict | None = None
    links: tuple[LinkUse, ...] = ()
    trials: tuple[TriedChange, ...] = ()
    untried: tuple[tuple[str, str], ...] = ()
    path: Callable[[], tuple[PathPart, ...]] = field(default=tuple, compare=False, repr=False)

    @property
    def title(self) -> str:
        """Return the model without the folders of its path."""
        return self.model if self.model.startswith("zoo:") else self.model.rpartition("/")[2]

    @property
    def capacity_bytes(self) -> int | None:
        """Return the memory of a device in bytes; None if the system does not specify it."""
        return self.hardware.memory_capacity_bytes

    @property
    def fits(self) -> bool | None:
        """Return whether the fullest device's peak is within its memory; None where unknown."""
        if self.capacity_bytes is None:
            return None
        return self.peak_memory_bytes <= self.capacity_bytes

    @property
    def device_groups(self) -> list[tuple[list[int], DeviceResult]]:
        """Return the ids of devices with equal figures, and the figures, by first id."""
        groups = lists_by_key((replace(device, id=0), device.id) for device in self.devices)
        return [(ids, same) for same, ids in groups.items()]

    def axis_words(self, total: CollectiveTotal) -> str:
        """Return the axis of a collective, with its mesh if there are several."""
        alone = len(self.meshes) == 1 or "->" in total.mesh_axis
        return total.mesh_axis if alone else f"{total.mesh}: {total.mesh_axis}"

    @property
    def slowest(self) -> DeviceResult:
        """Return the first device with the longest busy time."""
        return max(self.devices, key=lambda d: d.compute_s + d.exposed_comm_s)

    @property
    def spent_s(self) -> dict[str, float]:
        """Return the seconds of the busiest device's step by cause.

        ``compute``, ``memory`` and ``launch`` (what the host takes beyond the device included) are
        what most of each op's time is; compute where ops are not known. ``communication`` is what
        no compute hides and what collectives cost the kernels beside them, ``idle`` the rest.
        """
        return spent_of(self.slowest, self.ops)

    @property
    def bound_by(self) -> str:
        """Return the largest part of the busiest device's step in :attr:`spent_s`."""
        step_s = self.spent_s
        return max(step_s, key=lambda kind: step_s[kind])

    @property
    def bound_share(self) -> float:
        """Return the share of the step of :attr:`bound_by`."""
        step_s = self.spent_s
        total_s = sum(step_s.values())
        return step_s[self.bound_by] / total_s if total_s > 0 else 0.0


def spent_of(device: DeviceResult, ops: Iterable[OpTime]) -> dict[str, float]:
    """Return the seconds of a device's step by cause: see :attr:`Analysis.spent_s`."""
    shares = {"compute": 0.0, "memory": 0.0, "launch": 0.0, "communication": 0.0}
    names = {"host": "launch", "network": "communication"}
    for op in ops:
        bound_by = names.get(op.bound_by, op.bound_by)
        shares[bound_by if bound_by in shares else "compute"] += op.time_s
    known_s = sum(shares.values())
    if known_s <= 0:
        shares, known_s = {**shares, "compute": 1.0}, 1.0
    step_s = {kind: device.compute_s * took_s / known_s for kind, took_s in shares.items()}
    step_s["communication"] += device.exposed_comm_s
    return {**step_s, "idle": device.idle_s}
