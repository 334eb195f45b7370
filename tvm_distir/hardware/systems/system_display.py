# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show systems: their numbers with sources, and the roofline of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_distir.support import Column, DataTable
from tvm_distir.support.display import units

from .provenance import sourced_numbers

_INTENSITY = (1.0, 1e4)
"""FLOP per byte at the ends of a roofline."""


def system_headline(system: Any) -> str:
    """Return the name, the device and the networks of a system."""
    near = system.intra_node
    return (
        f"{system.name}: {system.description}\n"
        f"device {system.device.name}: {units.size(system.memory_capacity_bytes)}, "
        f"{units.count(system.memory_bandwidth_bytes_per_s, 'B/s')}; "
        f"{near.devices_per_node} devices per node; kernel profile {system.kernels}"
    )


def system_tables(system: Any) -> list[DataTable]:
    """Return the numbers of a system with their sources, of each of its stages if it has any."""
    if system.stages:
        return [table for stage in system.stages for table in system_tables(stage)]
    columns = (Column("name", "name"), Column("value", "value"), Column("unit", "unit"),
               Column("source", "source"))  # fmt: skip
    rows = [
        [number.name, _short(number.value), number.unit or None, number.source]
        for number in sourced_numbers(system)
    ]
    return [DataTable(f"{len(rows)} numbers of {system.name}", columns, rows)]


def _short(value: Any) -> Any:
    """Return a number, the numbers of a mapping in a line, or the length of a list."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(number)}" for key, number in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} entries"
    return value


def draw_system(system: Any, axes: Any) -> None:
    """Draw the roofline of a device: peak FLOP/s by arithmetic intensity, for each dtype.

    The attainable rate is ``min(peak, intensity * bandwidth)`` (Williams et al., "Roofline", 2009).
    """
    bandwidth = system.memory_bandwidth_bytes_per_s
    for dtype in system.device.matmul_TFLOPs:
        peak = system.peak_flops_per_s(dtype)
        ridge = min(max(peak / bandwidth, _INTENSITY[0]), _INTENSITY[1])
        points = [_INTENSITY[0], ridge, _INTENSITY[1]]
        axes.plot(points, [min(peak, x * bandwidth) for x in points], label=dtype)
    axes.set(
        xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="FLOP/s of a device",
        title=system.name,
    )  # fmt: skip
    axes.legend()
