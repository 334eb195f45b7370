# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Pieces of HTML: text made safe, bars, tables, colours of ops."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .model import Analysis

PALETTE = 10
"""Number of op colours; the last is for all ops that have none of their own."""


COMM_PALETTE = 5

UNITS = ("forward", "backward", "weight", "begin", "end")


def esc(text: object) -> str:
    """Escape for HTML text and for quoted attributes."""
    return html.escape(str(text), quote=True)


def op_colours(analysis: Analysis) -> dict[str, int]:
    """Colour number by op: the ones that take most time get a colour of their own.

    So do units of a pipeline, which the timeline shows instead of ops. Collectives have a palette
    of their own, from 100 on.
    """
    ordered = sorted(analysis.ops, key=lambda one: (-one.time_s, one.op))
    names = [*(UNITS if analysis.pipeline is not None else ()), *(one.op for one in ordered)]
    colours = {name: min(i, PALETTE - 1) for i, name in enumerate(names)}
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
