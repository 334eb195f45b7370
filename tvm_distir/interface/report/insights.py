# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The few sentences a reader would otherwise have to find in the tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import units
from .memory import verdict_words
from .model import Analysis, ReportParameter
from .verdict import pipeline_words


def findings(analysis: Analysis) -> list[str]:
    """Return the findings, the most important first, each as a sentence."""
    return [
        *(f"Warning: {said}." for said in analysis.warnings),
        *_pipeline(analysis),
        *_memory(analysis),
        *_time(analysis),
        *_communication(analysis),
        *_work(analysis),
        *_balance(analysis),
    ]


def _pipeline(analysis: Analysis) -> list[str]:
    words = pipeline_words(analysis)
    return [f"{words[:1].upper()}{words[1:]}: ranks wait for each other so long."] if words else []


def _memory(analysis: Analysis) -> list[str]:
    fullest = max(analysis.devices, key=lambda d: d.peak_memory_bytes)
    peak, held = fullest.peak_memory_bytes, fullest.param_bytes
    parts = f"of its peak of {units.size(peak)}, {units.size(held)} are parameters"
    capacity = analysis.capacity_bytes
    if not capacity:
        return [f"Device {fullest.id} holds most: {parts}."]
    if peak > capacity:
        return [
            f"Device {fullest.id} lacks {units.size(peak - capacity)} of memory: {parts}. "
            f"{verdict_words(analysis)[-1] if analysis.verdict else ''}".strip()
        ]
    return [
        f"The fullest device (number {fullest.id}) has {units.size(capacity - peak)} to spare: "
        f"{parts}."
    ]


def _time(analysis: Analysis) -> list[str]:
    if not analysis.ops:
        return []
    ordered = analysis.ops_by_time
    whole = sum(one.time_s for one in ordered)
    if whole <= 0:
        return []
    top = ordered[0]
    said = [
        f"{top.op} takes {units.share(top.time_s, whole)} of the compute time "
        f"({top.count} executions)."
    ]
    small = [one for one in ordered if one.bound_by == "launch"]
    small_s = sum(one.time_s for one in small)
    if small_s >= 0.05 * whole:
        said.append(
            f"{units.share(small_s, whole)} of the compute time goes to kernels too small to keep "
            f"a device busy (mostly {small[0].op})."
        )
    return said


def _communication(analysis: Analysis) -> list[str]:
    device = analysis.slowest
    if not analysis.collectives or device.comm_s <= 0:
        return ["No device waits for a collective: the program has none."]
    exposed = units.share(device.exposed_comm_s, device.comm_s)
    first = max(analysis.collectives, key=lambda c: c.time_s)
    return [
        f"{units.share(device.exposed_comm_s, analysis.time_s)} of the step is communication "
        f"that nothing hides ({exposed} of all communication); the heaviest is "
        f"{first.kind} over {first.mesh_axis}: {first.count} times, "
        f"{units.size(first.wire_bytes_per_device)} on the wire per device."
    ]


def _work(analysis: Analysis) -> list[str]:
    peak = analysis.hardware.peak_flops
    device = analysis.slowest
    if not peak or analysis.time_s <= 0:
        return []
    used = device.flops / (analysis.time_s * peak)
    return [
        f"Each device does {units.count(device.flops, 'FLOP')}, "
        f"{units.share(used, 1.0)} of what its peak of {units.count(peak, 'FLOP/s')} allows."
    ]


def _balance(analysis: Analysis) -> list[str]:
    busy = [d.compute_s for d in analysis.devices]
    most, least = max(busy), min(busy)
    if most <= 0 or least >= 0.95 * most:
        return []
    return [
        f"The devices are not evenly loaded: between {units.duration(least)} and "
        f"{units.duration(most)} of compute."
    ]


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that differ only in the numbers within their names."""

    pattern: str
    names: tuple[str, ...]
    example: ReportParameter

    @property
    def device_bytes(self) -> int:
        """Bytes of all of them on one device."""
        return self.example.device_bytes * len(self.names)

    @property
    def whole_bytes(self) -> int:
        """Bytes of all of them, unsharded."""
        return self.example.whole_bytes * len(self.names)


def parameter_groups(parameters: tuple[ReportParameter, ...]) -> list[ParameterGroup]:
    """Join the parameters of repeated layers: same name up to numbers, same shape and placement.

    Returns
    -------
    groups : list of ParameterGroup
        Ordered by the bytes they take on one device, most first.
    """
    found: dict[tuple[object, ...], list[ReportParameter]] = {}
    for parameter in parameters:
        pattern = re.sub(r"\d+", "*", parameter.name)
        key = (pattern, parameter.shape, parameter.dtype, parameter.mesh, parameter.placement)
        found.setdefault(key, []).append(parameter)
    groups = [
        ParameterGroup(
            str(key[0]) if len(same) > 1 else same[0].name,
            tuple(one.name for one in same),
            same[0],
        )
        for key, same in found.items()
    ]
    return sorted(groups, key=lambda g: (-g.device_bytes, g.pattern))
