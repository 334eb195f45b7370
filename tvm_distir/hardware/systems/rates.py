# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the time of FLOPs, bytes and launches of a kernel class on a system."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .constants import KERNEL_TIME_MODELS, Constant, value_of
from .hardware import Device

POWER_LIMITED = tuple(
    kernel_class for kernel_class, model in KERNEL_TIME_MODELS.items() if model.bursts
)
"""Kernel classes whose arithmetic slows down in a step."""
Amount = TypeVar("Amount", float, npt.NDArray[np.float64])
"""An amount of FLOPs, bytes or seconds: a number, or an array of numbers."""


@dataclass(frozen=True)
class RooflineTime(Generic[Amount]):
    """The seconds of kernels: arithmetic, arithmetic with overlapped traffic, and total.

    ``bound`` is positive where arithmetic decides, negative where traffic alone does.
    """

    bound: Amount
    busy: Amount
    total: Amount


class Rate(NamedTuple):
    """The rate of kernels of a class and dtype, see :class:`.constants.KernelTimeModel`.

    Attributes
    ----------
    flops_per_s, bytes_per_s : float
        Infinite where they take no time.
    peak_flops_per_s, saved_s : float
        A kernel runs at the peak first, which saves up to so many seconds; infinite and 0 where it
        does not.
    gap_s : float
        The idle time behind each kernel.
    floor_s : float
        The least a kernel takes.
    exposed : float
        Share of the traffic that arithmetic does not hide.
    power : float
        Of :class:`.hardware.PowerLaw`; 0 where arithmetic and traffic are not added by powers.
    """

    flops_per_s: float
    bytes_per_s: float
    peak_flops_per_s: float
    saved_s: float
    gap_s: float
    floor_s: float
    exposed: float
    power: float = 0.0

    def spent_s(self, flops: Amount, moved_bytes: Amount) -> RooflineTime[Amount]:
        """Return the seconds of a kernel, or of an array of kernels.

        Arithmetic is at the peak until the burst is over, then at the rate. The result is never
        less than either arithmetic or traffic alone.
        """
        compute: Any = flops / self.flops_per_s
        if self.saved_s:
            compute = np.maximum(flops / self.peak_flops_per_s, compute - self.saved_s)
        memory: Any = moved_bytes / self.bytes_per_s
        if self.power:
            most = np.maximum(compute, memory)
            ratio = np.minimum(compute, memory) / np.where(most > 0, most, 1.0)
            busy = most * (1.0 + ratio**self.power) ** (1.0 / self.power)
            return RooflineTime(compute - memory, busy, busy + self.gap_s)
        both: Any = compute + self.exposed * memory
        busy = np.maximum(both, memory)
        return RooflineTime(both - memory, busy, np.maximum(busy + self.gap_s, self.floor_s))


def rate(
    constants: Mapping[str, Constant], kernel_class: str, peak_flops: float, peak_bytes: float
) -> Rate:
    """Return the rate of a kernel class by the constants of a system; peaks per second."""
    model = KERNEL_TIME_MODELS.get(kernel_class, KERNEL_TIME_MODELS["memory"])

    def of(name: str) -> float:
        return value_of(constants, name) if name else 1.0

    efficiency = of(model.efficiency)
    burst_s = of("burst_us") * 1e-6 if model.bursts else 0.0
    bytes_per_s = of("memory_efficiency") * peak_bytes / of(model.factor)
    gap_s = of("kernel_gap_us") * of(model.gap_factor) * 1e-6
    burst = (peak_flops if model.bursts else math.inf, burst_s * (1.0 / efficiency - 1.0))
    return Rate(efficiency * peak_flops, bytes_per_s, *burst, gap_s, 0.0, model.exposed)


def law_rate(
    device: Device, kernel_class: str, dtype: str, peak_flops: float, sustained: bool
) -> Rate:
    """Return the rate of a kernel class by the power law of a device.

    ``sustained``: of a kernel in a step, where power is limited; otherwise of one by itself.
    """
    law = device.form(kernel_class, dtype)
    alone = law.arithmetic * peak_flops
    slower, burst_s = 1.0, 0.0
    if sustained and device.constants and kernel_class in POWER_LIMITED:
        slower = device.constants["sustained"].value
        burst_s = device.constants["burst_us"].value * 1e-6
    bytes_per_s = law.traffic * device.memory_bandwidth_GBps * 1e9
    timing = (alone, burst_s * (1.0 / slower - 1.0), law.t0_us * 1e-6, 0.0, 0.0)
    return Rate(alone * slower, bytes_per_s, *timing, law.power)
