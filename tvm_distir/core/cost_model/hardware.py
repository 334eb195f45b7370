# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the devices and the network of a system as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from tvm_distir.support import (
    Check,
    Fraction,
    InvalidValue,
    Keys,
    NotNegative,
    Positive,
    PositiveCount,
    Text,
)

KERNEL_CLASSES = (
    "matmul", "conv", "attention", "memory", "gather", "view", "batched", "vocabulary", "scores",
    "logits", "unaligned", "attention_backward",
)  # fmt: skip
"""Kernel classes, which differ in the fractions of the peaks that they reach."""
LIKE = {
    "batched": "matmul", "vocabulary": "matmul", "unaligned": "matmul", "scores": "memory",
    "logits": "memory", "attention_backward": "attention",
}  # fmt: skip
"""Kernel classes that default to another class where a system does not list them."""
VIEW = "view"
"""The kernel class that costs nothing: the result is the operand's memory."""
TENSOR_CLASSES = (
    "matmul", "conv", "attention", "attention_backward", "batched", "vocabulary", "unaligned",
)  # fmt: skip
"""Kernel classes that run at the peak of the matrix units."""


@dataclass(frozen=True)
class Efficiency:
    """Fractions of the peaks that kernels of the same class reach."""

    flops: Fraction
    bandwidth: Fraction


def _check_peaks(peaks: Mapping[str, float]) -> Mapping[str, float]:
    if "default" not in peaks:
        remedy = "Add the peak of the dtypes that are not listed."
        raise InvalidValue('there is no entry "default"', remedy)
    return peaks


Peaks = Annotated[Mapping[str, Positive], Check(_check_peaks)]
_RATED = [name for name in KERNEL_CLASSES if name != VIEW and name not in LIKE]
"""Kernel classes whose efficiencies a file of a system without constants lists."""


@dataclass(frozen=True)
class Device:
    """An accelerator, with fields in the units of their names and peaks by dtype."""

    name: Text
    memory_capacity_GiB: Positive
    memory_bandwidth_GBps: Positive
    launch_floor_us: NotNegative
    matmul_TFLOPs: Peaks
    vector_TFLOPs: Peaks
    efficiency: Annotated[Mapping[str, Efficiency], Keys(dict.fromkeys(_RATED, Efficiency))]


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
    """

    name: Text
    devices_per_node: PositiveCount
    bandwidth_GBps: Positive
    latency_us: NotNegative
    setup_us: NotNegative
    root_us: NotNegative = 0.0
    share: NotNegative = 0.0
    send_us: NotNegative | None = None


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
    """

    name: Text
    nics_per_node: PositiveCount
    bandwidth_per_nic_GBps: Positive
    latency_us: NotNegative
    setup_us: NotNegative


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
