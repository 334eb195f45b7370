# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the result of a search as one HTML file: Pareto front, plans and placement costs."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from tvm_distir.planning import CandidateRow, SearchResult
from tvm_distir.support.display import units

from .pages import render

_WIDTH, _HEIGHT = 720, 380
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 15, _WIDTH - 20, _HEIGHT - 48

_Pixel = tuple[float, float]


def search_page(result: SearchResult, title: str, limit_bytes: int) -> str:
    """Write a search as a self-contained HTML page.

    Parameters
    ----------
    result : SearchResult
    title : str
    limit_bytes : int
        Memory limit of a device.

    Returns
    -------
    page : str
        Deterministic for a result.
    """
    return render(
        "search.html.j2",
        title=title,
        result=result,
        plot=front_plot(result, limit_bytes),
        plans=[_cells(group.name, group.first.row) for group in result.shown],
        why=[
            [f"{x.weight} ({x.entry})", x.alike, x.form, x.other, units.difference(x.dearer_s)]
            for x in result.why
        ],
        rejected=[[row.candidate.key, row.state, row.why] for row in result.rows if row.why],
    )


class FrontPlot(NamedTuple):
    """The simulated candidates by time and memory, in pixels from the upper left corner.

    Attributes
    ----------
    lines : list of (CSS class, start, end)
    ticks : list of (x, y, text, anchor)
    front : list of (x, y)
        The Pareto front as a line.
    dots : list of (CSS class, place, words)
    width, height : int
    """

    lines: list[tuple[str, _Pixel, _Pixel]]
    ticks: list[tuple[float, float, str, str]]
    front: list[_Pixel]
    dots: list[tuple[str, _Pixel, str]]
    width: int = _WIDTH
    height: int = _HEIGHT


def front_plot(result: SearchResult, limit_bytes: int) -> FrontPlot | None:
    """Draw the simulated candidates and the Pareto front; None where nothing was simulated."""
    rows = [
        (row, row.time_s, row.peak_bytes)
        for row in result.rows
        if row.time_s is not None and row.peak_bytes is not None
    ]
    if not rows:
        return None
    most_s = 1.05 * max(time_s for _, time_s, _ in rows)
    most_bytes = 1.05 * max([*(peak_bytes for _, _, peak_bytes in rows), limit_bytes])

    def pixel(time_s: float, size_bytes: float) -> _Pixel:
        x = _LEFT + (_RIGHT - _LEFT) * time_s / most_s
        y = _TOP + (_BOTTOM - _TOP) * (1 - size_bytes / most_bytes)
        return round(x, 1), round(y, 1)

    base, top, end = pixel(0, 0), pixel(0, most_bytes), pixel(most_s, 0)
    limit = ("limit", pixel(0, limit_bytes), pixel(most_s, limit_bytes))
    ticks = []
    for time_s in _ticks(most_s):
        x, y = pixel(time_s, 0)
        ticks.append((x, y + 18, units.duration(time_s), "middle"))
    for size_bytes in _ticks(most_bytes, 2 ** (10 * int(math.log2(most_bytes) // 10))):
        x, y = pixel(0, size_bytes)
        ticks.append((x - 6, y + 4, units.size(size_bytes), "end"))
    corners = [pixel(row.time_s or 0.0, row.peak_bytes or 0) for row in result.front]
    front = [(corners[0][0], top[1]), corners[0]] if corners else []
    for (_, before), (x, y) in itertools.pairwise(corners):
        front += [(x, before), (x, y)]
    if corners:
        front.append((end[0], corners[-1][1]))
    dots = []
    for row, time_s, peak_bytes in rows:
        kind = "best" if row in result.front else "dot" if row.state == "solved" else "no"
        words = f"{row.candidate.key}: {units.duration(time_s)}, {row.state}"
        dots.append((kind, pixel(time_s, peak_bytes), f"{words}, {units.size(peak_bytes)}"))
    return FrontPlot([("axis", base, top), ("axis", base, end), limit], ticks, front, dots)


def _ticks(most: float, unit: float = 1.0) -> list[float]:
    """Return up to six round numbers of units from 0 on."""
    raw = most / unit / 5
    scale: float = 10.0 ** math.floor(math.log10(raw))
    step = next(x * scale for x in (1, 2, 5, 10) if x * scale >= raw) * unit
    return [i * step for i in range(int(most / step) + 1)]


def _cells(name: str, row: CandidateRow) -> list[str]:
    return [
        f"{name}: {row.candidate.key}" if name else row.candidate.key,
        units.duration(row.time_s or 0.0),
        *("-" if share is None else units.share(share, 1.0) for share in row.shares),
        "-" if row.likely_s is None else units.duration(row.likely_s),
        "-" if row.price_s is None else units.duration(row.price_s),
        "-" if row.gap is None else f"{100 * row.gap:.2f}%",
        units.size(row.peak_bytes or 0),
    ]
