# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a search found as one HTML file: the Pareto front as a picture, the table, and why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tvm_distir.planning import CandidateRow, SearchResult

from . import units
from .markup import esc

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 380, 90, 48
"""Of the picture, and of the room for its axes' words, in pixels."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto}
table{border-collapse:collapse}svg{max-width:100%;height:auto}
td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}
.front{fill:none;stroke:#2a78c8;stroke-width:2}.dot{fill:#8889}.best{fill:#2a78c8}
.no{fill:none;stroke:#c33}line{stroke:#8886}.limit{stroke:#c33;stroke-dasharray:5 4}
text{fill:currentColor;font-size:12px}
"""


def search_page(result: SearchResult, title: str, limit_bytes: int) -> str:
    """Write a search as a self-contained HTML page.

    Parameters
    ----------
    result : SearchResult
    title : str
    limit_bytes : int
        What a device may keep.

    Returns
    -------
    page : str
        The same for the same result, byte by byte.
    """
    said = ", ".join(f"{count} {state}" for state, count in sorted(result.space.items()))
    parts = [
        f"<h1>{esc(title)}</h1>",
        f"<p>Candidates: {esc(said)}{'' if result.complete else ' (stopped early)'}."
        f" Proved: no plan of these takes less than {units.duration(result.least_s)}.</p>",
        front_svg(result, limit_bytes),
        "<h2>Plans</h2>",
        _table(
            ("plan", "step", "compute", "comm", "likely", "labels", "gap", "peak"),
            [_cells(plan.row) for plan in result.plans],
        ),
    ]
    if result.why:
        parts.append("<h2>Why</h2><p>What the second best placement of a weight would add.</p>")
        rows = [
            [f"{x.weight} ({x.entry})", str(x.alike), x.form, x.other, seconds(x.dearer_s)]
            for x in result.why
        ]
        parts.append(_table(("weight", "alike", "lies", "second best", "dearer"), rows))
    rest = [[row.candidate.key, row.state, row.why] for row in result.rows if row.why]
    if rest:
        parts += ["<h2>What was left out</h2>", _table(("candidate", "", "why"), rest)]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{esc(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def front_svg(result: SearchResult, limit_bytes: int) -> str:
    """The candidates that were simulated, by time and memory, and the line that none beats."""
    dots = [row for row in result.rows if row.time_s is not None and row.peak_bytes is not None]
    if not dots:
        return "<p>Nothing was simulated.</p>"
    most_s = 1.05 * max(row.time_s or 0.0 for row in dots)
    most_bytes = 1.05 * max([*(row.peak_bytes or 0 for row in dots), limit_bytes])

    def place(time_s: float, size_bytes: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - 20, HEIGHT - BOTTOM - 15
        x, y = LEFT + wide * time_s / most_s, 15 + high * (1 - size_bytes / most_bytes)
        return round(x, 1), round(y, 1)

    base, top, end = place(0, 0), place(0, most_bytes), place(most_s, 0)
    drawn = [_line(base, top), _line(base, end)]
    for time_s in _ticks(most_s):
        x, y = place(time_s, 0)
        drawn.append(_word(x, y + 18, units.duration(time_s), "middle"))
    for size_bytes in _ticks(most_bytes, 2 ** (10 * int(math.log2(most_bytes) // 10))):
        x, y = place(0, size_bytes)
        drawn.append(_word(x - 6, y + 4, units.size(size_bytes), "end"))
    drawn.append(_line(place(0, limit_bytes), place(most_s, limit_bytes), "limit"))
    front = [place(row.time_s or 0.0, row.peak_bytes or 0) for row in result.front]
    if front:
        steps = [f"{front[0][0]},{top[1]}", f"{front[0][0]},{front[0][1]}"]
        for (_, before), (x, y) in itertools.pairwise(front):
            steps += [f"{x},{before}", f"{x},{y}"]
        steps.append(f"{end[0]},{front[-1][1]}")
        drawn.append(f'<polyline class="front" points="{" ".join(steps)}"/>')
    for row in dots:
        x, y = place(row.time_s or 0.0, row.peak_bytes or 0)
        kind = "best" if row in result.front else "dot" if row.state == "solved" else "no"
        said = f"{row.candidate.key}: {units.duration(row.time_s or 0.0)}, {row.state}, "
        said += units.size(row.peak_bytes or 0)
        drawn.append(
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"><title>{esc(said)}</title></circle>'
        )
    words = "Time of a step against the memory of the device that keeps most; dashed: the limit"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">'
        f"{''.join(drawn)}</svg>\n<p>{words}.</p>"
    )


def seconds(value_s: float) -> str:
    """A difference of times with its sign."""
    return f"{'-' if value_s < 0 else '+'}{units.duration(abs(value_s))}"


def _ticks(most: float, unit: float = 1.0) -> list[float]:
    """Up to six round numbers of units from 0 on."""
    raw = most / unit / 5
    scale: float = 10.0 ** math.floor(math.log10(raw))
    step = next(x * scale for x in (1, 2, 5, 10) if x * scale >= raw) * unit
    return [i * step for i in range(int(most / step) + 1)]


def _line(start: tuple[float, float], end: tuple[float, float], kind: str = "axis") -> str:
    x, y = start
    return f'<line class="{kind}" x1="{x}" y1="{y}" x2="{end[0]}" y2="{end[1]}"/>'


def _word(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{esc(text)}</text>'


def _cells(row: CandidateRow) -> list[str]:
    return [
        row.candidate.key,
        units.duration(row.time_s or 0.0),
        *("-" if share is None else units.share(share, 1.0) for share in row.shares),
        "-" if row.likely_s is None else units.duration(row.likely_s),
        "-" if row.price_s is None else units.duration(row.price_s),
        "-" if row.gap is None else f"{100 * row.gap:.2f}%",
        units.size(row.peak_bytes or 0),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<td>{esc(cell)}</td>" for cell in row) for row in rows]
    named = "".join(f"<th>{esc(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<table>\n<tr>{named}</tr>\n{body}</table>"
