# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show simulated steps: time and memory by device, and the collectives."""

from __future__ import annotations

from typing import Any

from tvm_distir.support import Column, DataTable
from tvm_distir.support.display import units

_PARTS = (("compute_s", "compute"), ("exposed_comm_s", "exposed communication"), ("idle_s", "idle"))
_DEVICES = (
    Column("device", "device"),
    Column("mesh", "mesh"),
    Column("compute_s", "compute", units.duration),
    Column("exposed_comm_s", "exposed comm", units.duration),
    Column("idle_s", "idle", units.duration),
    Column("comm_s", "total comm", units.duration),
    Column("peak_memory_bytes", "peak memory", units.size),
    Column("param_bytes", "parameters", units.size),
    Column("flops", "FLOPs", units.count),
)
_COLLECTIVES = (
    Column("kind", "kind"),
    Column("mesh", "mesh"),
    Column("mesh_axis", "axis"),
    Column("group_size", "group", str),
    Column("count", "count", str),
    Column("bytes_per_device", "bytes", units.size),
    Column("wire_bytes_per_device", "wire bytes", units.size),
    Column("time_s", "time", units.duration),
)
MOST_DEVICES = 16
"""Devices that text and HTML show; ``to_pandas`` has all."""


def result_headline(result: Any) -> str:
    """Return time and memory of a step."""
    peak, capacity = result.peak_memory_bytes, result.memory_capacity_bytes
    fits = "fits" if result.fits else "DOES NOT FIT"
    return (
        f"{units.duration(result.time_s)} per step on {len(result.devices)} devices of "
        f"{result.system}; {fits}: {units.size(peak)} of {units.size(capacity)} per device"
    )


def result_tables(result: Any, devices: int | None = MOST_DEVICES) -> list[DataTable]:
    """Return the tables of devices and of collectives.

    Parameters
    ----------
    result : Result
    devices : int or None
        The number of devices that are listed, the first ones; None for all.
    """
    count = len(result.devices)
    shown = count if devices is None else min(devices, count)
    rows = [
        [device.id, *(getattr(device, column.name) for column in _DEVICES[1:])]
        for device in (result.devices[i] for i in range(shown))
    ]
    title = "Devices" if shown == count else f"Devices ({shown} of {count})"
    collectives = [[getattr(x, column.name) for column in _COLLECTIVES] for x in result.collectives]
    return [
        DataTable(title, _DEVICES, rows),
        DataTable("Collectives per device", _COLLECTIVES, collectives),
    ]


def draw_result(result: Any, axes: Any) -> None:
    """Draw a bar per set of equal devices: computing, exposed communication and waiting."""
    devices = result.devices.distinct
    names = [f"{device.mesh}: device {device.id}" for device in devices]
    left = [0.0] * len(devices)
    for field, word in _PARTS:
        parts = [getattr(device, field) * 1e3 for device in devices]
        axes.barh(names, parts, left=left, label=word)
        left = [a + b for a, b in zip(left, parts, strict=True)]
    axes.set(xlabel="time (ms)", title=f"step on {result.system}")
    axes.invert_yaxis()
    axes.legend()
