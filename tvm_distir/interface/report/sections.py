# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The sections of the HTML report. Every name passes through :func:`esc`."""

from __future__ import annotations

from tvm_distir.performance import CollectiveTotal, FunctionTime

from . import units
from .markup import bar, esc, op_colours, row, section, swatch, table
from .model import Analysis, ReportLane
from .text_table import ranges, work


def time_split(analysis: Analysis) -> str:
    """Where the step goes, one stacked bar per group of equal devices."""
    whole = analysis.time_s
    rows = []
    for ids, d in analysis.device_groups:
        pieces = (
            ("compute", d.compute_s, "--compute"),
            ("exposed communication", d.exposed_comm_s, "--comm"),
            ("idle", d.idle_s, "--idle"),
        )
        bars = "".join(
            f'<span style="width:{100 * part / whole if whole > 0 else 0:.3f}%;'
            f'background:var({colour})" title="{name}: {units.duration(part)}"></span>'
            for name, part, colour in pieces
        )
        words = "".join(
            f'<span><i class="sw" style="background:var({colour})"></i>{name} '
            f"<b>{units.duration(part)}</b> ({units.share(part, whole)})</span>"
            for name, part, colour in pieces
        )
        label = f"device{'s' if len(ids) > 1 else ''} {ranges(ids)}"
        if len(analysis.meshes) > 1:
            label += f" ({d.mesh})"
        rows.append(
            f'<div class="split"><div class="who">{esc(label)}</div>'
            f'<div class="stack">{bars}</div><div class="legend">{words}</div></div>'
        )
    hidden = analysis.slowest.comm_s - analysis.slowest.exposed_comm_s
    note = ""
    if hidden > 0:
        note = f"{units.duration(hidden)} of communication are hidden behind compute."
    return section("Where the time goes", "time", "".join(rows), note)


def lane_title(lane: ReportLane) -> str:
    """``stage0: devices 0-3``."""
    many = "s" if len(lane.devices) > 1 else ""
    return f"{lane.mesh}: device{many} {ranges(lane.devices)}"


def timeline(analysis: Analysis) -> str:
    """The frame that the script fills: streams, functions and memory on one time axis."""
    if not analysis.lanes:
        return ""
    names = [(str(i), lane_title(lane)) for i, lane in enumerate(analysis.lanes)]
    if len(names) > 1:
        names.insert(0, ("-1", "all together"))
    tabs = "".join(
        f'<button type="button" data-lane="{value}" aria-pressed="{str(not i).lower()}">'
        f"{esc(name)}</button>"
        for i, (value, name) in enumerate(names)
    )
    body = (
        f'<div class="tools"><div class="tabs">{tabs}</div><div class="zoom">'
        '<button type="button" data-scale aria-pressed="false">memory to its peak</button>'
        '<button type="button" data-zoom="in" aria-label="zoom in">+</button>'
        '<button type="button" data-zoom="out" aria-label="zoom out">&minus;</button>'
        '<button type="button" data-zoom="all">whole step</button></div></div>'
        '<div id="tl" class="tl" tabindex="0"><canvas></canvas>'
        '<div id="tip" class="tip" hidden></div></div>'
        '<canvas id="mini" class="mini" aria-hidden="true"></canvas>'
        '<div id="tl-legend" class="legend"></div><p id="tl-note" class="note"></p>'
        "<noscript><p>The timeline needs JavaScript; all figures are in the tables.</p></noscript>"
    )
    note = (
        "Drag over a part to see it larger, Ctrl + wheel or + and &minus; to zoom, arrow keys to "
        "move, 0 for the whole step. Point at a block for its figures."
    )
    return section("Timeline and memory", "timeline", body, note)


def collectives(analysis: Analysis) -> str:
    """Table of collectives, with bars for their wire bytes and times."""
    if not analysis.collectives:
        return section("Collectives", "collectives", "<p>The program has none.</p>")
    colours = op_colours(analysis)
    ordered = sorted(analysis.collectives, key=_weight, reverse=True)
    most = max(one.wire_bytes_per_device for one in ordered)
    longest = max(one.time_s for one in ordered)
    head = ["kind", "axis", "group", "count", "bytes", "wire bytes", "", "time", ""]
    kinds = "llrrrrlrl"
    rows = []
    for one in ordered:
        colour = colours[one.kind]
        cells = [
            f"{swatch(colour)}{esc(one.kind)}",
            esc(analysis.axis_words(one)),
            str(one.group_size),
            str(one.count),
            units.size(one.bytes_per_device),
            units.size(one.wire_bytes_per_device),
            bar(one.wire_bytes_per_device, most, f"--c{colour - 100}"),
        ]
        cells.append(units.duration(one.time_s))
        cells.append(bar(one.time_s, longest, f"--c{colour - 100}"))
        rows.append(row(cells, kinds))
    note = "Per device and step. Bytes are those of the results, wire bytes what a ring sends."
    return section("Collectives", "collectives", table(head, rows, kinds), note)


def _weight(one: CollectiveTotal) -> tuple[float, int]:
    return (one.time_s, one.wire_bytes_per_device)


def _on(analysis: Analysis) -> str:
    return esc(f" on each of {analysis.focus}" if analysis.focus else " of one device")


def ops(analysis: Analysis) -> str:
    """Time by op kind."""
    if not analysis.ops:
        return ""
    colours = op_colours(analysis)
    ordered = sorted(analysis.ops, key=lambda one: (-one.time_s, one.op))
    whole = sum(one.time_s for one in ordered)
    most = ordered[0].time_s
    bounds = any(one.bound_by for one in ordered)
    kinds = "lrrrlrr" + ("l" if bounds else "")
    rows = []
    for one in ordered:
        colour = colours[one.op]
        cells = [
            f"{swatch(colour)}{esc(one.op)}",
            str(one.count),
            units.duration(one.time_s),
            units.share(one.time_s, whole),
            bar(one.time_s, most, f"--o{colour}"),
            work(one.flops),
            units.size(one.bytes_moved),
            esc(one.bound_by),
        ]
        rows.append(row(cells[: len(kinds)], kinds))
    head = ["op", "count", "time", "share", "", "work", "bytes moved", "bound by"]
    note = f"Compute stream{_on(analysis)}, summed over the step."
    return section("Time by op", "ops", table(head[: len(kinds)], rows, kinds), note)


def functions(analysis: Analysis) -> str:
    """The hierarchical program: time per function, callees included."""
    if not analysis.functions:
        return ""
    most = max(function.compute_s + function.comm_s for function in analysis.functions)
    rows = [_function_row(function, most) for function in analysis.functions]
    head = ["function", "calls", "compute", "communication", "", "work"]
    note = f"All calls together{_on(analysis)}, callees included."
    return section("Functions", "functions", table(head, rows, "lrrrlr"), note)


def _function_row(one: FunctionTime, most: float) -> str:
    scale = 100.0 / most if most > 0 else 0.0
    drawn = (
        f'<span class="bar"><span style="width:{one.compute_s * scale:.2f}%;'
        f'background:var(--compute)"></span><span style="width:{one.comm_s * scale:.2f}%;'
        'background:var(--comm)"></span></span>'
    )
    cells = [
        f'<span class="tree" style="padding-left:{one.depth * 1.2:.1f}em">{esc(one.name)}</span>',
        str(one.calls),
        units.duration(one.compute_s),
        units.duration(one.comm_s),
        drawn,
        work(one.flops),
    ]
    return row(cells, "lrrrlr")
