# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write an analysis as text for a terminal: a verdict, then tables, the largest things first."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.performance import OpTime
from tvm_distir.support import align, printable
from tvm_distir.support.display import units

from .advice import advice_lines
from .links import link_lines
from .memory import memory_lines
from .model import Analysis
from .module_tree import UNNAMED, largest_rows, module_cells, module_head, module_tree
from .text_table import ranges, work
from .verdict import Painter, verdict_lines

_ROWS, _MODULES = 12, 16


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
    lines += _modules(analysis, paint)
    lines += _time(analysis, paint)
    lines += _first(analysis, paint)
    lines += memory_lines(analysis, paint)
    lines += _collectives(analysis, paint)
    lines += link_lines(analysis)
    lines += _ops(analysis, paint)
    lines += _timings(analysis, paint)
    return "\n".join(lines) + "\n"


def _unmodelled(analysis: Analysis, paint: Painter) -> list[str]:
    if not analysis.unmodelled_ops:
        return []
    named = ", ".join(printable(op) for op in analysis.unmodelled_ops)
    return [
        "",
        paint("red", f"NOT MODELLED (only operand traffic is counted): {named}"),
        "  The times are lower bounds: the compute time of these ops is missing.",
    ]


def branch_words(analysis: Analysis) -> list[str]:
    """Return a sentence on the simulated branch of every ``If``."""
    return [
        f"If {printable(branch.place)}: simulated with the more expensive branch "
        f"{printable(branch.taken)} ({units.duration(branch.taken_s)}), not "
        f"{printable(branch.other)} ({units.duration(branch.other_s)})"
        for branch in analysis.branches
    ]


def _modules(analysis: Analysis, paint: Painter) -> list[str]:
    root = module_tree(analysis.modules)
    if not root.children:
        return []
    rows = [
        ["  " * depth + printable(node.name), *module_cells(root, node)]
        for depth, node in largest_rows(root, _MODULES)
    ]
    rows.append(["total", *module_cells(root, root)])
    head, sides = module_head(root)
    title = paint("bold", f"Time by module and pass{_on(analysis)}")
    return ["", title, *align(head, rows, sides)]


def _time(analysis: Analysis, paint: Painter) -> list[str]:
    total = analysis.time_s
    rows = []
    for ids, d in analysis.device_groups:
        parts = (d.compute_s, d.exposed_comm_s, d.idle_s)
        shares = [f"{units.duration(part)} ({units.share(part, total)})" for part in parts]
        rows.append([ranges(ids), *shares, units.duration(d.comm_s), work(d.flops)])
    head = ["devices", "compute", "exposed comm", "idle", "total comm", "FLOPs"]
    return ["", paint("bold", "Time"), *align(head, rows, "lrrrrr")]


def _first(analysis: Analysis, paint: Painter) -> list[str]:
    lines = [f"  {printable(line)}" for line in advice_lines(analysis)]
    return ["", paint("bold", "Recommendations"), *lines] if lines else []


def _collectives(analysis: Analysis, paint: Painter) -> list[str]:
    lines = ["", paint("bold", "Collectives per device")]
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
    return [*lines, *align(head, rows, "llrrrrr")]


def _on(analysis: Analysis) -> str:
    return f" on each of {analysis.focus}" if analysis.focus else " on one device"


def _ops(analysis: Analysis, paint: Painter) -> list[str]:
    if not analysis.ops:
        return []
    total_s = sum(op.time_s for op in analysis.ops)

    def cells(name: Sequence[str], ops: Sequence[OpTime]) -> list[str]:
        count, time_s = sum(op.count for op in ops), sum(op.time_s for op in ops)
        flops, moved = sum(op.flops for op in ops), sum(op.bytes_moved for op in ops)
        share = units.share(time_s, total_s)
        return [*name, str(count), units.duration(time_s), share, work(flops), units.size(moved)]

    rows = [cells([op.module or UNNAMED, op.phase, op.op], [op]) for op in analysis.ops[:_ROWS]]
    if rest := analysis.ops[_ROWS:]:
        rows.append(cells([f"{len(rest)} more", "", ""], rest))
    head = ["module", "pass", "op", "count", "time", "share", "FLOPs", "bytes moved"]
    return ["", paint("bold", f"Time by op{_on(analysis)}"), *align(head, rows, "lllrrrrr")]


def _timings(analysis: Analysis, paint: Painter) -> list[str]:
    if not analysis.timings_s:
        return []
    rows = [[stage, f"{duration_s:.2f} s"] for stage, duration_s in analysis.timings_s.items()]
    rows.append(["total", f"{sum(analysis.timings_s.values()):.2f} s"])
    return ["", paint("bold", "Time of this analysis"), *align(["stage", "time"], rows, "lr")]
