# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The end of the page: placements of parameters, the command, the system."""

from __future__ import annotations

import json

from . import units
from .insights import ParameterGroup, parameter_groups
from .markup import esc, row, section, table
from .model import Analysis
from .text import branch_words


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
