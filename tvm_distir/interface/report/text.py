# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The analysis as text for a terminal: a verdict, then tables, the largest things first."""

from __future__ import annotations

from tvm_distir.support import printable

from . import units
from .advice import advice_lines
from .links import link_lines
from .memory import memory_lines
from .model import Analysis
from .text_table import ranges, table, work
from .verdict import Painter, verdict_lines

_ROWS = 12


def to_text(analysis: Analysis, colour: bool = False) -> str:
    """Write the analysis as text.

    Parameters
    ----------
    analysis : Analysis
    colour : bool
        Whether to use colour codes; the words are the same.

    Returns
    -------
    text : str
        Ends with a newline.
    """
    paint = Painter(colour)
    lines = [*verdict_lines(analysis, paint)]
    lines += _unmodelled(analysis, paint)
    lines += branch_words(analysis)
    lines += _time(analysis, paint)
    lines += _first(analysis, paint)
    lines += memory_lines(analysis, paint)
    lines += _collectives(analysis, paint)
    lines += link_lines(analysis)
    lines += _ops(analysis, paint)
    lines += _functions(analysis, paint)
    lines += _timings(analysis, paint)
    return "\n".join(lines) + "\n"


def _unmodelled(analysis: Analysis, paint: Painter) -> list[str]:
    if not analysis.unmodelled_ops:
        return []
    named = ", ".join(printable(op) for op in analysis.unmodelled_ops)
    return [
        "",
        paint("red", f"NOT MODELLED, counted as moving their operands only: {named}"),
        "  The times are too low by what these ops compute.",
    ]


def branch_words(analysis: Analysis) -> list[str]:
    """Return the simulated branch of every ``If`` in words."""
    return [
        f"If {printable(branch.place)}: counted as its dearer branch {printable(branch.taken)} "
        f"({units.duration(branch.taken_s)}), not {printable(branch.other)} "
        f"({units.duration(branch.other_s)})"
        for branch in analysis.branches
    ]


def _time(analysis: Analysis, paint: Painter) -> list[str]:
    whole = analysis.time_s
    rows = []
    for ids, d in analysis.device_groups:
        rows.append(
            [
                ranges(ids),
                f"{units.duration(d.compute_s)} ({units.share(d.compute_s, whole)})",
                f"{units.duration(d.exposed_comm_s)} ({units.share(d.exposed_comm_s, whole)})",
                f"{units.duration(d.idle_s)} ({units.share(d.idle_s, whole)})",
                units.duration(d.comm_s),
                work(d.flops),
            ]
        )
    head = ["devices", "compute", "exposed comm", "idle", "all comm", "work"]
    return ["", paint("bold", "Time"), *table(head, rows, "lrrrrr")]


def _first(analysis: Analysis, paint: Painter) -> list[str]:
    lines = [f"  {printable(line)}" for line in advice_lines(analysis)]
    return ["", paint("bold", "What to change first"), *lines] if lines else []


def _collectives(analysis: Analysis, paint: Painter) -> list[str]:
    lines = ["", paint("bold", "Collectives, per device")]
    if not analysis.collectives:
        return [*lines, "  none"]
    rows = [
        [
            collective.kind,
            analysis.axis_words(collective),
            str(collective.group_size),
            str(collective.count),
            units.size(collective.bytes_per_device),
            units.size(collective.wire_bytes_per_device),
            units.duration(collective.time_s),
        ]
        for collective in analysis.collectives
    ]
    head = ["kind", "axis", "group", "count", "bytes", "wire bytes", "time"]
    return [*lines, *table(head, rows, "llrrrrr")]


def _on(analysis: Analysis) -> str:
    return f", on each of {analysis.focus}" if analysis.focus else ", on one device"


def _ops(analysis: Analysis, paint: Painter) -> list[str]:
    if not analysis.ops:
        return []
    ordered = analysis.ops_by_time
    whole = sum(one.time_s for one in ordered)
    rows = [
        [
            one.op,
            str(one.count),
            units.duration(one.time_s),
            units.share(one.time_s, whole),
            work(one.flops),
            units.size(one.bytes_moved),
        ]
        for one in ordered[:_ROWS]
    ]
    rest = ordered[_ROWS:]
    if rest:
        rest_s = sum(one.time_s for one in rest)
        rows.append(
            [
                f"{len(rest)} more",
                str(sum(one.count for one in rest)),
                units.duration(rest_s),
                units.share(rest_s, whole),
                work(sum(one.flops for one in rest)),
                units.size(sum(one.bytes_moved for one in rest)),
            ]
        )
    head = ["op", "count", "time", "share", "work", "moved"]
    return ["", paint("bold", f"Time by op{_on(analysis)}"), *table(head, rows, "lrrrrr")]


def _functions(analysis: Analysis, paint: Painter) -> list[str]:
    if len(analysis.functions) < 2:
        return []
    rows = [
        [
            "  " * function.depth + function.name,
            str(function.calls),
            units.duration(function.compute_s),
            units.duration(function.comm_s),
            work(function.flops),
        ]
        for function in analysis.functions[: 2 * _ROWS]
    ]
    hidden = len(analysis.functions) - len(rows)
    if hidden > 0:
        rows.append([f"{hidden} more", "", "", "", ""])
    head = ["function", "calls", "compute", "comm", "work"]
    return [
        "",
        paint("bold", f"Functions{_on(analysis)}, callees included"),
        *table(head, rows, "lrrrr"),
    ]


def _timings(analysis: Analysis, paint: Painter) -> list[str]:
    if not analysis.timings_s:
        return []
    rows = [[stage, f"{took:.2f} s"] for stage, took in analysis.timings_s.items()]
    total = sum(analysis.timings_s.values())
    rows.append(["in all", f"{total:.2f} s"])
    return ["", paint("bold", "This analysis took"), *table(["stage", "time"], rows, "lr")]
