# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the devices and the network of a system as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from annotated_types import Ge, Interval

from tvm_distir.core.ops import KERNEL_CLASSES, VIEW
from tvm_distir.support import (
    Check,
    Fraction,
    InvalidValue,
    Keys,
    NotNegative,
    Positive,
    PositiveCount,
    Text,
    one_of,
)

from .collective_algorithms import ALGORITHMS, TIMED
from .constants import Constant
from .efficiency import LIKE, Efficiency

ASSUMED = "assumed"
"""The word with which the source of a number begins that was not measured."""


def _with_default(what: str) -> Check:
    """Return the check of values by dtype, which need one for the dtypes that are not listed."""

    def check(values: Mapping[str, object]) -> Mapping[str, object]:
        if "default" not in values:
            remedy = f"Add the {what} of the dtypes that are not listed."
            raise InvalidValue('there is no entry "default"', remedy)
        return values

    return Check(check)


Peaks = Annotated[Mapping[str, Positive], _with_default("peak")]
_RATED = [name for name in KERNEL_CLASSES if name != VIEW and name not in LIKE]
"""Kernel classes whose efficiencies a file of a system without constants lists."""


@dataclass(frozen=True)
class PowerLaw:
    """The time of kernels of a class and dtype, in four constants.

    ``t0 + ((flops / (arithmetic peak))^power + (bytes / (traffic bandwidth))^power)^(1/power)``:
    the sum of both at a power of 1, and their maximum at a large power. As both fractions are at
    most 1, no kernel takes less than its arithmetic at the peak or its bytes at the bandwidth.

    Attributes
    ----------
    t0_us : float
        What a kernel takes that does nothing.
    arithmetic, traffic : float
        Fractions of the peak and of the bandwidth.
    power : float
    source : str
    """

    t0_us: NotNegative
    arithmetic: Fraction
    traffic: Fraction
    power: Annotated[Positive, Ge(0.25)]
    source: Text


PowerLaws = Annotated[Mapping[str, PowerLaw], _with_default("form")]


@dataclass(frozen=True)
class Device:
    """An accelerator, with fields in the units of their names and peaks by dtype.

    Attributes
    ----------
    name : str
    memory_capacity_GiB, memory_bandwidth_GBps : float
    launch_floor_us : float
        The least time of a kernel; 0 for a device with ``kernel_times``.
    matmul_TFLOPs, vector_TFLOPs : mapping of str to float
        Peaks by dtype, or family of dtypes (``float8``), with an entry ``default``.
    efficiency : mapping of str to Efficiency
        By kernel class; empty for a device with ``kernel_times``.
    kernel_times : mapping of str to mapping of str to PowerLaw
        The form of each kernel class but views, by dtype, with an entry ``default``. Empty for a
        device inside a system's file, whose constants or efficiencies price kernels until a fit
        adds forms.
    constants : mapping of str to Constant
        Of :data:`.constants.DEVICE_CONSTANTS`; only with ``kernel_times``.
    sources : mapping of str to str
        The source of each number of the data sheet, by its key.
    price_per_hour : float, optional
        The price of a device for an hour.
    watts : float, optional
        The power limit.
    """

    name: Text
    memory_capacity_GiB: Positive
    memory_bandwidth_GBps: Positive
    launch_floor_us: NotNegative
    matmul_TFLOPs: Peaks
    vector_TFLOPs: Peaks
    efficiency: Annotated[Mapping[str, Efficiency], Keys(dict.fromkeys(_RATED, Efficiency))]
    kernel_times: Mapping[str, PowerLaws] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float | None = None
    watts: float | None = None

    @property
    def is_composed(self) -> bool:
        """Return whether it has a file of its own, with forms of kernels, and no efficiencies."""
        return bool(self.kernel_times) and not self.efficiency

    def form(self, kernel_class: str, dtype: str) -> PowerLaw:
        """Return the form of a kernel class: of the dtype, of its family, or the default."""
        return of_dtype(self.kernel_times[kernel_class], dtype)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return the kernel classes and constants of the device that nothing was measured for."""
        laws = (
            f"{kernel_class} {dtype}"
            for kernel_class, by_dtype in self.kernel_times.items()
            for dtype, law in by_dtype.items()
            if law.source.startswith(ASSUMED)
        )
        constants = (n for n, c in self.constants.items() if c.source.startswith(ASSUMED))
        return (*laws, *constants)


Entry = TypeVar("Entry")


def of_dtype(entries: Mapping[str, Entry], dtype: str) -> Entry:
    """Return the entry of a dtype, else of its family (``float8``), else ``default``."""
    for name in (dtype, dtype.split("_")[0]):
        if name in entries:
            return entries[name]
    return entries["default"]


def _check_algorithm(name: str) -> str:
    if name not in ALGORITHMS:
        one_of(ALGORITHMS.names()).function(name)
    return name


Oversubscription = Annotated[NotNegative, Ge(1)]


@dataclass(frozen=True)
class Curve:
    """The time of an algorithm of a collective inside a node.

    ``setup + steps hop + sent bytes / bandwidth``, with the steps and bytes of the algorithm. The
    collective takes the time of the fastest of the curves of its kind.

    Attributes
    ----------
    algorithm : str
        A name of :data:`.collective_algorithms.ALGORITHMS`.
    kind : str
        The collective.
    setup_us, hop_us : float
        The time of a launch, and of each step.
    bandwidth_GBps : float
        The bandwidth that a device reaches per direction, at most the line rate of the node.
    copied : float
        The share, 0 to 1, of a device's own block that passes its links like the others.
    """

    algorithm: Annotated[str, Check(_check_algorithm)]
    kind: Annotated[str, one_of(TIMED)]
    setup_us: NotNegative
    hop_us: NotNegative
    bandwidth_GBps: Positive
    copied: Annotated[float, Interval(ge=0, le=1)] = 0.0


@dataclass(frozen=True)
class OuterTier:
    """A tier of the network beyond the nodes and the pods that ``inter_node`` connects.

    Attributes
    ----------
    name : str
    devices : int
        Devices ``k * devices`` and following form a domain; the tier connects the domains.
    bandwidth_GBps : float
        The line rate of a device per direction into the tier, before oversubscription.
    latency_us : float
        What the tier adds to the latency of a message (``hop_us``) that passes it.
    oversubscription : float
        How many times less than all the devices of a domain together send, leaves the domain.
    """

    name: str
    devices: int
    bandwidth_GBps: float
    latency_us: float = 0.0
    oversubscription: float = 1.0


@dataclass(frozen=True)
class IntraNode:
    """The network inside a node.

    Attributes
    ----------
    name : str
    devices_per_node : int
        Devices ``k * devices_per_node`` and following share a node.
    bandwidth_GBps : float
        The bandwidth at which a device sends, per direction, as collectives reach it.
    latency_us : float
        The latency of each step of a ring.
    setup_us : float
        The setup time of each collective.
    root_us : float
        Times the square root of the MB that a rank sends: the bandwidth that grows with the size.
    share : float
        The fraction, divided by the number of ranks, by which small groups are slower per byte.
    send_us : float, optional
        The time of a message; None: messages are timed as collectives.
    curves : tuple of Curve
        Where there are any, ``bandwidth_GBps`` is the line rate of a device, the fastest curve
        gives the time (:mod:`.tiers`), and latency, setup, root and share are not used.
    """

    name: Text
    devices_per_node: PositiveCount
    bandwidth_GBps: Positive
    latency_us: NotNegative
    setup_us: NotNegative
    root_us: NotNegative = 0.0
    share: NotNegative = 0.0
    send_us: NotNegative | None = None
    curves: tuple[Curve, ...] = ()


@dataclass(frozen=True)
class InterNode:
    """The network between nodes.

    Attributes
    ----------
    name : str
    nics_per_node : int
    bandwidth_per_nic_GBps : float
        The bandwidth of a network adapter per direction, as collectives reach it.
    latency_us : float
        The latency of each step of a ring.
    setup_us : float
        The setup time of each collective, added to that inside the node.
    oversubscription : float
        How many times less than the adapters of a node carry, leaves the node.
    """

    name: Text
    nics_per_node: PositiveCount
    bandwidth_per_nic_GBps: Positive
    latency_us: NotNegative
    setup_us: NotNegative
    oversubscription: Oversubscription = 1.0


@dataclass(frozen=True)
class HostLink:
    """The link between a device and the memory of its host.

    Attributes
    ----------
    name : str
    bandwidth_GBps : float
        The bandwidth of a single device, per direction; both directions work at the same time.
    latency_us : float
        The latency of each copy.
    """

    name: Text
    bandwidth_GBps: Positive
    latency_us: NotNegative = 0.0
