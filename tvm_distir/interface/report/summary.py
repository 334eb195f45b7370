# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The head of the page: verdict, alarm and the figures that matter most."""

from __future__ import annotations

from . import units
from .insights import findings
from .markup import bar, esc
from .model import Analysis
from .verdict import mesh_words


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
        f"{esc(analysis.bound_by)} ({units.share(analysis.bound_share, 1.0)})</span></p>"
        f"{_alarm(analysis)}"
        f'<div class="kpis">{_kpis(analysis)}</div>'
        f'<ul class="findings">{"".join(f"<li>{esc(s)}</li>" for s in findings(analysis))}</ul>'
        "</header>"
    )


def _bound_class(analysis: Analysis) -> str:
    return "ok" if analysis.bound_by in ("compute", "memory") else "warn"


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
