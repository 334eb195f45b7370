# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe memory: the use of devices, the peak by tensor, and remedies."""

from __future__ import annotations

from tvm_distir.performance import BufferGroup, MemoryAccount
from tvm_distir.support import printable

from . import units
from .model import Analysis, ReportLane
from .text_table import bar, ranges, table
from .verdict import Painter

_HEAD = ("bytes", "share", "role", "what", "made in", "unit")


def memory_lines(analysis: Analysis, paint: Painter) -> list[str]:
    """Lines of a text: how full each device is, what holds the fullest."""
    lines = ["", paint("bold", "Memory per device, at its peak")]
    for ids, d in analysis.device_groups:
        sizes = f"{units.size(d.peak_memory_bytes)}, of it parameters {units.size(d.param_bytes)}"
        capacity = analysis.capacity_bytes
        if not capacity:
            lines.append(f"  {ranges(ids)}: {sizes}")
            continue
        over = d.peak_memory_bytes > capacity
        drawn = paint("red" if over else "green", bar(d.peak_memory_bytes, capacity))
        used = units.share(d.peak_memory_bytes, capacity)
        lines.append(f"  {ranges(ids)}: [{drawn}] {used} of {units.size(capacity)}; {sizes}")
    kept = max((one.account.host_bytes for one in analysis.lanes if one.account), default=0)
    if kept:
        lines.append(f"  In the host's memory: at most {units.size(kept)} per device.")
    lane = fullest(analysis)
    if lane is None or lane.account is None:
        return lines
    account = lane.account
    rows = [holder_cells(holder, account) for holder in account.holders]
    lines += ["", paint("bold", f"What holds the peak, on devices {ranges(lane.devices)}")]
    lines += [f"  {printable(line)}" for line in account_sentences(account)]
    lines += table(_HEAD, rows, "rrllll")
    return [*lines, *(f"  {line}" for line in verdict_words(analysis))]


def fullest(analysis: Analysis) -> ReportLane | None:
    """The lane whose devices hold most."""
    known = [lane for lane in analysis.lanes if lane.account is not None]
    return max(known, key=lambda one: one.account.peak_bytes if one.account else 0, default=None)


def verdict_words(analysis: Analysis) -> list[str]:
    """Return the remedies for a program that does not fit."""
    found = analysis.verdict
    if found is None:
        return []
    largest = ", ".join(f"{_what(holder)} {units.size(holder.bytes)}" for holder in found.holders)
    lines = [f"It lacks {units.size(found.missing_bytes)}. The largest holders: {largest}."]
    for remedy in found.remedies:
        fits = remedy.peak_bytes <= (analysis.capacity_bytes or 0)
        outcome = "fits" if fits else "not enough"
        lines.append(f"{remedy.name}: about {units.size(remedy.peak_bytes)}, {outcome}")
    last = f"Cheapest that fits: {found.chosen}." if found.chosen else "None of these is enough."
    return [printable(line) for line in (*lines, last)]


def _what(holder: BufferGroup) -> str:
    return holder.what if holder.count == 1 else f"{holder.what} ({holder.count})"


def holder_cells(holder: BufferGroup, account: MemoryAccount) -> list[str]:
    """Return the cells of a row of a table: bytes, share, role, what, function, unit."""
    share = units.share(holder.bytes, account.peak_bytes)
    place = (holder.function or "-", holder.unit or "-")
    return [units.size(holder.bytes), share, holder.role, _what(holder), *place]


def account_sentences(account: MemoryAccount) -> tuple[str, str]:
    """Say when the peak is and what it consists of, by role."""
    holes = ""
    if account.fragmentation_bytes:
        holes = f"; holes between blocks: at most {units.size(account.fragmentation_bytes)} more"
    parts = (f"{role} {units.size(size)}" for role, size in account.at_peak.items())
    peak = f"Peak {units.size(account.peak_bytes)} at {account.moment}{holes}."
    return peak, f"{', '.join(parts)}."
