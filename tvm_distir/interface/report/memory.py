# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe memory: the use of devices, the peak by tensor, and remedies."""

from __future__ import annotations

from tvm_distir.performance import BufferGroup, MemoryAccount
from tvm_distir.support import align, printable
from tvm_distir.support.display import units

from .model import Analysis, ReportLane
from .text_table import bar, ranges
from .verdict import Painter

_HEAD = ("bytes", "share", "role", "buffer", "function", "phase")


def memory_lines(analysis: Analysis, paint: Painter) -> list[str]:
    """Return lines on the peak memory of each device, and the buffers of the fullest."""
    lines = ["", paint("bold", "Peak memory per device")]
    for ids, d in analysis.device_groups:
        sizes = (
            f"{units.size(d.peak_memory_bytes)}, of which parameters {units.size(d.param_bytes)}"
        )
        capacity = d.memory_capacity_bytes
        if not capacity:
            lines.append(f"  {ranges(ids)}: {sizes}")
            continue
        over = d.peak_memory_bytes > capacity
        bar_text = paint("red" if over else "green", bar(d.peak_memory_bytes, capacity))
        used = units.share(d.peak_memory_bytes, capacity)
        lines.append(f"  {ranges(ids)}: [{bar_text}] {used} of {units.size(capacity)}; {sizes}")
    memories = [lane.account for lane in analysis.timelines if lane.account]
    host_bytes = max((memory.host_bytes for memory in memories), default=0)
    if host_bytes:
        lines.append(f"  Host memory: at most {units.size(host_bytes)} per device.")
    lane = fullest(analysis)
    if lane is None or lane.account is None:
        return lines
    memory = lane.account
    rows = [holder_cells(holder, memory) for holder in memory.holders]
    lines += ["", paint("bold", f"Peak memory by buffer on devices {ranges(lane.devices)}")]
    lines += [f"  {printable(line)}" for line in account_sentences(memory)]
    lines += align(_HEAD, rows, "rrllll")
    return [*lines, *(f"  {line}" for line in verdict_words(analysis))]


def fullest(analysis: Analysis) -> ReportLane | None:
    """Return the lane whose peak takes the most of its memory; None without memory statistics."""
    known = [
        (lane.account.peak_bytes / (lane.capacity_bytes or 1), -number, lane)
        for number, lane in enumerate(analysis.timelines)
        if lane.account is not None
    ]
    return max(known, default=(0.0, 0, None))[-1]


def verdict_words(analysis: Analysis) -> list[str]:
    """Return the remedies for a program that does not fit."""
    verdict = analysis.verdict
    if verdict is None:
        return []
    largest = ", ".join(f"{_what(holder)} {units.size(holder.bytes)}" for holder in verdict.holders)
    missing = units.size(verdict.missing_bytes)
    lines = [f"Memory is exceeded by {missing}. Largest buffers: {largest}."]
    for remedy in verdict.remedies:
        fits = remedy.peak_bytes <= (analysis.capacity_bytes or 0)
        outcome = "fits" if fits else "does not fit"
        lines.append(f"{remedy.name}: about {units.size(remedy.peak_bytes)}, {outcome}")
    last = "None of these changes is enough."
    if verdict.chosen:
        last = f"Cheapest change that fits: {verdict.chosen}."
    return [printable(line) for line in (*lines, last)]


def _what(holder: BufferGroup) -> str:
    return holder.what if holder.count == 1 else f"{holder.what} ({holder.count})"


def holder_cells(holder: BufferGroup, memory: MemoryAccount) -> list[str]:
    """Return the cells of a row of a table: bytes, share, role, buffer, function, phase."""
    share = units.share(holder.bytes, memory.peak_bytes)
    origin = (holder.function or "-", holder.unit or "-")
    return [units.size(holder.bytes), share, holder.role, _what(holder), *origin]


def account_sentences(memory: MemoryAccount) -> tuple[str, str]:
    """Return sentences on the moment of the peak and on its bytes by role."""
    fragmentation = ""
    if memory.fragmentation_bytes:
        size = units.size(memory.fragmentation_bytes)
        fragmentation = f"; fragmentation: at most {size} more"
    parts = (f"{role} {units.size(size_bytes)}" for role, size_bytes in memory.at_peak.items())
    peak = f"Peak {units.size(memory.peak_bytes)} at {memory.moment}{fragmentation}."
    return peak, f"{', '.join(parts)}."
