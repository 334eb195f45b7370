# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The sections of the HTML report. Every name passes through :func:`esc`."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from ..simulation import Collective, FunctionTime
from . import units
from .insights import ParameterGroup, findings, parameter_groups
from .model import Analysis, Lane
from .text import branch_words, mesh_words, ranges, work

PALETTE = 10
"""Number of op colours; the last is for all ops that have none of their own."""

COMM_PALETTE = 5


def esc(text: object) -> str:
    """Escape for HTML text and for quoted attributes."""
    return html.escape(str(text), quote=True)


def op_colours(analysis: Analysis) -> dict[str, int]:
    """Colour number by op: the ones that take most time get a colour of their own.

    Collectives have a palette of their own, from 100 on.
    """
    ordered = sorted(analysis.ops, key=lambda one: (-one.time_s, one.op))
    colours = {one.op: min(i, PALETTE - 1) for i, one in enumerate(ordered)}
    kinds: list[str] = []
    for one in analysis.collectives:
        if one.kind not in kinds:
            kinds.append(one.kind)
    for i, kind in enumerate(kinds):
        colours[kind] = 100 + min(i, COMM_PALETTE - 1)
    if "send" in colours:
        colours["recv"] = colours["send"]  # counted once, as a send; drawn at both ends
    return colours


def swatch(colour: int) -> str:
    """A small coloured square."""
    name = f"c{colour - 100}" if colour >= 100 else f"o{colour}"
    return f'<i class="sw" style="background:var(--{name})"></i>'


def bar(part: float, whole: float, colour: str) -> str:
    """A horizontal bar as long as the share of the whole."""
    percent = max(0.0, min(100.0, 100.0 * part / whole)) if whole > 0 else 0.0
    return (
        f'<span class="bar"><span style="width:{percent:.2f}%;background:var({colour})">'
        "</span></span>"
    )


def table(head: Sequence[str], rows: Sequence[str], kinds: str, css: str = "") -> str:
    """A table in a box that scrolls sideways. ``kinds``: ``l`` or ``r`` per column."""
    cells = "".join(
        f'<th scope="col"{_kind(kind)}>{esc(name)}</th>' for name, kind in zip(head, kinds)
    )
    return (
        f'<div class="scroll"><table class="{css}"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _kind(kind: str) -> str:
    return ' class="r"' if kind == "r" else ""


def row(cells: Sequence[str], kinds: str, attributes: str = "") -> str:
    """A table row of cells that are HTML already."""
    inner = "".join(f"<td{_kind(kind)}>{cell}</td>" for cell, kind in zip(cells, kinds))
    return f"<tr{attributes}>{inner}</tr>"


def section(title: str, anchor: str, body: str, note: str = "") -> str:
    """A titled card."""
    hint = f'<p class="note">{note}</p>' if note else ""
    return f'<section id="{anchor}"><h2>{esc(title)}</h2>{hint}{body}</section>'


def header(analysis: Analysis) -> str:
    """The verdict and the figures one asks for first."""
    fits = analysis.fits
    badge = {
        True: '<span class="badge ok">fits in memory</span>',
        False: '<span class="badge bad">does not fit in memory</span>',
        None: '<span class="badge">memory size unknown</span>',
    }[fits]
    what = f"strategy <b>{esc(analysis.strategy)}</b>" if analysis.strategy else "a given plan"
    batch = f", batch {analysis.batch}" if analysis.batch else ""
    return (
        f'<header><p class="kicker">tvm-distir report</p><h1>{esc(analysis.title)}</h1>'
        f'<p class="sub">on <b>{esc(analysis.hardware.name)}</b>, mesh '
        f"<b>{esc(mesh_words(analysis))}</b>, {what}{esc(batch)}</p>"
        f'<p class="verdict">{badge}<span class="badge {_bound_class(analysis)}">bound by '
        f"{esc(analysis.bound_by)}</span></p>{_alarm(analysis)}"
        f'<div class="kpis">{_kpis(analysis)}</div>'
        f'<ul class="findings">{"".join(f"<li>{esc(s)}</li>" for s in findings(analysis))}</ul>'
        "</header>"
    )


def _bound_class(analysis: Analysis) -> str:
    return {"compute": "ok", "communication": "warn", "waiting": "warn"}[analysis.bound_by]


def _alarm(analysis: Analysis) -> str:
    if not analysis.unmodelled_ops:
        return ""
    named = "".join(f"<code>{esc(op)}</code> " for op in analysis.unmodelled_ops)
    return (
        '<div class="alarm" role="alert"><b>Not modelled</b>, counted as moving their operands '
        f"only: {named}<br>The times below are too low by what these ops compute.</div>"
    )


def _kpi(name: str, value: str, more: str, drawn: str = "") -> str:
    return (
        f'<div class="kpi"><span class="k">{esc(name)}</span><span class="v">{esc(value)}</span>'
        f'{drawn}<span class="m">{esc(more)}</span></div>'
    )


def _kpis(analysis: Analysis) -> str:
    device = analysis.slowest
    rate = ""
    if analysis.batch and analysis.time_s > 0:
        rate = f"{units.count(analysis.batch / analysis.time_s)} samples per second"
    cards = [_kpi("Time per step", units.duration(analysis.time_s), rate or "one whole step")]
    capacity = analysis.capacity_bytes
    if capacity:
        over = analysis.peak_memory_bytes > capacity
        drawn = bar(analysis.peak_memory_bytes, capacity, "--bad" if over else "--ok")
        used = units.share(analysis.peak_memory_bytes, capacity)
        more = f"{used} of {units.size(capacity)} per device"
    else:
        drawn, more = "", "per device, at its peak"
    cards.append(_kpi("Peak memory", units.size(analysis.peak_memory_bytes), more, drawn))
    cards.append(
        _kpi(
            "Exposed communication",
            units.share(device.exposed_comm_s, analysis.time_s),
            f"{units.duration(device.exposed_comm_s)} of {units.duration(device.comm_s)}",
            bar(device.exposed_comm_s, analysis.time_s, "--comm"),
        )
    )
    peak = analysis.hardware.peak_flops
    if peak and analysis.time_s > 0:
        used_flops = device.flops / (analysis.time_s * peak)
        cards.append(
            _kpi(
                "FLOP utilisation",
                units.share(used_flops, 1.0),
                f"of {units.count(peak, 'FLOP/s')} peak",
                bar(used_flops, 1.0, "--compute"),
            )
        )
    return "".join(cards)


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


def lane_title(lane: Lane) -> str:
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


def _weight(one: Collective) -> tuple[float, int]:
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
    most = max(one.compute_s + one.comm_s for one in analysis.functions)
    rows = [_function_row(one, most) for one in analysis.functions]
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


def placements(analysis: Analysis) -> tuple[str, list[ParameterGroup]]:
    """Table of parameters and the frame for the picture of the chosen one.

    Returns
    -------
    body : str
    groups : list of ParameterGroup
        In the order of the rows, for the script.
    """
    groups = parameter_groups(analysis.parameters)
    if not groups:
        return "", []
    many = len(analysis.meshes) > 1
    kinds = "llll" + ("l" if many else "") + "rr"
    rows = []
    for i, group in enumerate(groups):
        one = group.example
        times = f' <span class="times">&times; {len(group.names)}</span>'
        cells = [
            f'<button type="button" class="link" title="{esc(group.names[0])}">'
            f"{esc(group.pattern)}</button>{times if len(group.names) > 1 else ''}",
            esc(units.shape(one.shape)),
            esc(one.dtype),
            f"<code>{esc(one.placement)}</code>",
            *([esc(one.mesh)] if many else []),
            units.size(group.device_bytes),
            units.size(group.whole_bytes),
        ]
        rows.append(row(cells, kinds, f' data-param="{i}"'))
    head = ["parameter", "shape", "type", "placement", *(["mesh"] if many else [])]
    head += ["per device", "whole"]
    body = (
        '<div class="place"><div><input id="filter" type="search" placeholder="filter by name or '
        f'placement" aria-label="filter parameters">{table(head, rows, kinds, "params")}</div>'
        '<div class="picture"><h3 id="pic-name"></h3><p id="pic-words" class="note"></p>'
        '<svg id="pic-tensor" role="img" aria-label="how the tensor is cut"></svg>'
        '<svg id="pic-mesh" role="img" aria-label="which device holds which part"></svg>'
        "</div></div>"
    )
    note = (
        "Repeated layers are joined (* stands for their numbers). Choose a row to see how the "
        "tensor is cut and which device holds which part; one colour is one part."
    )
    return section("Placements", "placements", body, note), groups


def asked(analysis: Analysis) -> str:
    """The command and the plan."""
    pieces = [
        '<div class="code"><button type="button" class="copy" data-copy="cmd">copy</button>'
        f'<pre id="cmd">{esc(analysis.command)}</pre></div>'
    ]
    if analysis.plan is not None:
        count = len(analysis.plan.get("rules", ()))
        text = json.dumps(analysis.plan, indent=1, default=str)
        pieces.append(
            f"<details><summary>The plan as JSON ({count} rules)</summary>"
            f'<div class="code"><button type="button" class="copy" data-copy="plan">copy</button>'
            f'<pre id="plan">{esc(text)}</pre></div></details>'
        )
    return section("What was asked", "asked", "".join(pieces))


def system(analysis: Analysis) -> str:
    """The hardware's figures and what the cost model takes for granted."""
    facts = "".join(
        f"<tr><th scope=row>{esc(name)}</th><td>{esc(value)}</td></tr>"
        for name, value in analysis.hardware.facts
    )
    body = f'<div class="scroll"><table class="facts"><tbody>{facts}</tbody></table></div>'
    lines = (*analysis.assumptions, *branch_words(analysis))
    assumed = "".join(f"<li>{esc(line)}</li>" for line in lines)
    if assumed:
        body += f"<h3>What the cost model assumes</h3><ul>{assumed}</ul>"
    if analysis.unmodelled_ops:
        named = "".join(f"<li><code>{esc(op)}</code></li>" for op in analysis.unmodelled_ops)
        body += f"<h3>Ops without a cost</h3><ul>{named}</ul>"
    return section(f"System: {analysis.hardware.name}", "system", body)
