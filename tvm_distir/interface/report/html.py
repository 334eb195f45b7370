# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The analysis as one HTML file that asks nobody for anything else."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from . import appendix, figures, sections
from .advice import first_section
from .events import lane_data
from .insights import ParameterGroup
from .links import link_section
from .markup import PALETTE, esc, op_colours
from .memory import memory_section
from .model import Analysis
from .summary import header

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def to_html(analysis: Analysis) -> str:
    """Write the analysis as a self-contained HTML page.

    Parameters
    ----------
    analysis : Analysis

    Returns
    -------
    page : str
        The same for the same analysis, byte by byte; wall-clock timings are left out.
    """
    body_placements, groups = appendix.placements(analysis)
    body = [
        sections.time_split(analysis),
        first_section(analysis),
        sections.timeline(analysis),
        figures.critical_path(analysis),
        memory_section(analysis),
        sections.collectives(analysis),
        link_section(analysis),
        sections.ops(analysis),
        figures.roofline(analysis),
        sections.functions(analysis),
        body_placements,
        appendix.asked(analysis),
        appendix.system(analysis),
    ]
    data = _script_data(analysis, groups)
    title = f"{analysis.title} on {analysis.hardware.name}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{esc(title)}</title>\n<style>\n{_asset('report.css')}</style>\n</head>\n"
        f"<body>\n<main>\n{header(analysis)}\n{_links(body)}\n"
        f"{chr(10).join(s for s in body if s)}\n</main>\n"
        f'<script type="application/json" id="data">{_embed(data)}</script>\n'
        f"<script>\n{_asset('report.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _links(body: list[str]) -> str:
    names = (
        ("time", "Time"),
        ("first", "First"),
        ("timeline", "Timeline"),
        ("path", "Path"),
        ("memory", "Memory"),
        ("collectives", "Collectives"),
        ("links", "Links"),
        ("ops", "Ops"),
        ("roofline", "Roofline"),
        ("functions", "Functions"),
        ("placements", "Placements"),
        ("asked", "Command"),
        ("system", "System"),
    )
    made = "".join(body)
    links = "".join(
        f'<a href="#{anchor}">{name}</a>'
        for anchor, name in names
        if f'<section id="{anchor}">' in made
    )
    return f'<nav aria-label="sections">{links}</nav>'


def _embed(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, whatever the names hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _script_data(analysis: Analysis, groups: list[ParameterGroup]) -> dict[str, Any]:
    colours = op_colours(analysis)
    named = sorted(colours.items(), key=lambda item: (item[1], item[0]))
    legend = [[op, c] for op, c in named if c != PALETTE - 1]
    return {
        "time_ns": round(analysis.time_s * 1e9),
        "capacity": analysis.capacity_bytes,
        "legend": legend,
        "lanes": [
            {"title": sections.lane_title(lane), **lane_data(lane, colours)}
            for lane in analysis.lanes
        ],
        "meshes": [
            {
                "name": mesh.name,
                "axes": list(mesh.axes),
                "shape": list(mesh.shape),
                "devices": list(mesh.device_ids),
            }
            for mesh in analysis.meshes
        ],
        "params": [
            {
                "name": group.pattern,
                "shape": list(group.example.shape),
                "mesh": group.example.mesh,
                "placement": group.example.placement,
                "bytes": group.example.device_bytes,
            }
            for group in groups
        ],
    }
