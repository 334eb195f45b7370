# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize the main figures of an analysis in sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm_distir.support.display import units

from .memory import verdict_words
from .model import Analysis, ReportParameter
from .module_tree import longest_module, module_tree
from .verdict import pipeline_words


def findings(analysis: Analysis) -> list[str]:
    """Return the findings, the most important first, each as a sentence."""
    return [
        *(f"Warning: {warning}." for warning in (*analysis.notes, *analysis.warnings)),
        *_pipeline(analysis),
        *_memory(analysis),
        *_time(analysis),
        *_communication(analysis),
        *_work(analysis),
        *_balance(analysis),
    ]


def _pipeline(analysis: Analysis) -> list[str]:
    words = pipeline_words(analysis)
    return [f"{words[:1].upper()}{words[1:]} of the step."] if words else []


def _memory(analysis: Analysis) -> list[str]:
    fullest = max(
        analysis.devices, key=lambda d: d.peak_memory_bytes / (d.memory_capacity_bytes or 1)
    )
    peak, weight_bytes = fullest.peak_memory_bytes, fullest.param_bytes
    parts = f"peak {units.size(peak)}, of which {units.size(weight_bytes)} parameters"
    capacity = analysis.capacity_bytes
    if not capacity:
        return [f"Device {fullest.id} is the fullest: {parts}."]
    if peak > capacity:
        return [
            f"Device {fullest.id} exceeds its memory by {units.size(peak - capacity)}: {parts}. "
            f"{verdict_words(analysis)[-1] if analysis.verdict else ''}".strip()
        ]
    return [
        f"Device {fullest.id} is the fullest, with {units.size(capacity - peak)} to spare: {parts}."
    ]


def _time(analysis: Analysis) -> list[str]:
    if not analysis.ops:
        return []
    total = sum(op.time_s for op in analysis.ops)
    if total <= 0:
        return []
    path, module = longest_module(module_tree(analysis.modules))
    title, share = path.replace("(host)", "The host"), units.share(module.total_s, total)
    sentences = [f"{title} takes {share} of the compute time."] if path else []
    small = [op for op in analysis.ops if op.bound_by == "launch"]
    small_s = sum(op.time_s for op in small)
    if small_s >= 0.05 * total:
        sentences.append(
            f"{units.share(small_s, total)} of the compute time is spent in launch-bound kernels "
            f"(mostly {small[0].title})."
        )
    return sentences


def _communication(analysis: Analysis) -> list[str]:
    device = analysis.slowest
    if not analysis.collectives or device.comm_s <= 0:
        return ["The program spends no time in collectives."]
    exposed = units.share(device.exposed_comm_s, device.comm_s)
    first = max(analysis.collectives, key=lambda c: c.time_s)
    return [
        f"{units.share(device.exposed_comm_s, analysis.time_s)} of the step is exposed "
        f"communication ({exposed} of all communication); the largest is "
        f"{first.kind} over {first.mesh_axis}: {first.count} calls, "
        f"{units.size(first.wire_bytes_per_device)} on the wire per device."
    ]


def _work(analysis: Analysis) -> list[str]:
    peak = analysis.hardware.peak_flops
    device = analysis.slowest
    if not peak or analysis.time_s <= 0:
        return []
    used = device.flops / (analysis.time_s * peak)
    return [
        f"Each device performs {units.count(device.flops, 'FLOP')}, "
        f"{units.share(used, 1.0)} of its peak throughput of {units.count(peak, 'FLOP/s')}."
    ]


def _balance(analysis: Analysis) -> list[str]:
    busy = [d.compute_s for d in analysis.devices]
    most, least = max(busy), min(busy)
    if most <= 0 or least >= 0.95 * most:
        return []
    return [
        f"The load is imbalanced: compute time per device ranges from {units.duration(least)} "
        f"to {units.duration(most)}."
    ]


@dataclass(frozen=True)
class ParameterGroup:
    """A group of parameters that differ only in the numbers within their names."""

    pattern: str
    names: tuple[str, ...]
    example: ReportParameter

    @property
    def device_bytes(self) -> int:
        """Return the bytes of all parameters on one device."""
        return self.example.device_bytes * len(self.names)

    @property
    def full_bytes(self) -> int:
        """Return the bytes of all parameters, unsharded."""
        return self.example.full_bytes * len(self.names)


def parameter_groups(parameters: tuple[ReportParameter, ...]) -> list[ParameterGroup]:
    """Join the parameters of repeated layers: same name up to numbers, same shape and placement.

    Returns
    -------
    groups : list of ParameterGroup
        Ordered by their bytes on a device, largest first.
    """
    groups_by_key: dict[tuple[object, ...], list[ReportParameter]] = {}
    for parameter in parameters:
        pattern = re.sub(r"\d+", "*", parameter.name)
        key = (pattern, parameter.shape, parameter.dtype, parameter.mesh, parameter.placement)
        groups_by_key.setdefault(key, []).append(parameter)
    groups = [
        ParameterGroup(
            str(key[0]) if len(same) > 1 else same[0].name,
            tuple(parameter.name for parameter in same),
            same[0],
        )
        for key, same in groups_by_key.items()
    ]
    return sorted(groups, key=lambda g: (-g.device_bytes, g.pattern))
