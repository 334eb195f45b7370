# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write an analysis as a self-contained HTML file."""

from __future__ import annotations

import json
from typing import Any

from .advice import advice_lines
from .events import lane_data
from .figures import (
    band_words,
    basis_words,
    cost_parts,
    figures,
    run_words,
    throughput_words,
)
from .insights import ParameterGroup, findings, parameter_groups
from .links import LINK_HEAD, link_cells
from .memory import account_sentences, fullest, holder_cells, verdict_words
from .model import Analysis, ReportLane
from .module_tree import largest_rows, module_cells, module_head, module_tree
from .pages import colour_legend, op_colours, render
from .roofline import roofline_plot
from .text import branch_words
from .text_table import ranges
from .verdict import mesh_words

_MODULES = 80
"""Most rows of the tree of modules."""


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
    groups = parameter_groups(analysis.parameters)
    colours = op_colours(analysis)
    tree = module_tree(analysis.modules)
    return render(
        "report.html.j2",
        analysis=analysis,
        mesh_words=mesh_words(analysis),
        figures=figures(analysis),
        throughput_words=throughput_words(figures(analysis)),
        cost_parts=cost_parts(figures(analysis)),
        run_words=run_words(analysis, figures(analysis)),
        basis_words=basis_words(analysis),
        band_words=band_words(analysis),
        findings=findings(analysis),
        advice=advice_lines(analysis),
        path=analysis.path(),
        holders=_holders(analysis),
        link_head=LINK_HEAD,
        link_rows=[link_cells(link) for link in analysis.links],
        colours=colours,
        roofline=roofline_plot(analysis),
        tree=tree,
        module_cells=module_cells,
        module_head=module_head(tree),
        module_rows=[
            (depth, node.name, module_cells(tree, node), node.compute_s)
            for depth, node in largest_rows(tree, _MODULES)
        ],
        groups=groups,
        plan_json=json.dumps(analysis.plan, indent=1, default=str),
        assumptions=(*analysis.assumptions, *branch_words(analysis)),
        data=_script_data(analysis, groups, colours),
    )


def _holders(analysis: Analysis) -> dict[str, Any] | None:
    """Return the buffers that hold the peak memory of the fullest devices."""
    lane = fullest(analysis)
    if lane is None or lane.account is None:
        return None
    memory = lane.account
    return {
        "words": " ".join([f"Devices {ranges(lane.devices)}.", *account_sentences(memory)]),
        "rows": [(group.bytes, holder_cells(group, memory)) for group in memory.holders],
        "most_bytes": max((group.bytes for group in memory.holders), default=0),
        "verdict": verdict_words(analysis),
    }


def _lane_title(lane: ReportLane) -> str:
    """Return the title of a lane, as ``stage0: devices 0-3``."""
    many = "s" if len(lane.devices) > 1 else ""
    return f"{lane.mesh}: device{many} {ranges(lane.devices)}"


def _script_data(
    analysis: Analysis, groups: list[ParameterGroup], colours: dict[str, int]
) -> dict[str, object]:
    return {
        "time_ns": round(analysis.time_s * 1e9),
        "legend": colour_legend(colours),
        "lanes": [
            {"title": _lane_title(lane), **lane_data(lane, colours)} for lane in analysis.timelines
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
