# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Draw the front of ways of serving as a picture in SVG."""

from __future__ import annotations

from html import escape

from tvm_distir.planning import ServingSearchResult

_WIDTH, _HEIGHT, _MARGIN = 760, 420, 64
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b")


def front_svg(result: ServingSearchResult, title: str) -> str:
    """Return the front of a search: tokens per second of a device against those of a user."""
    points = result.front
    most_x = max((p.per_user for p in points), default=1.0) * 1.08
    most_y = max((p.per_device for p in points), default=1.0) * 1.08
    plans = list(dict.fromkeys(p.plan for p in points))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_WIDTH / 2}" y="24" text-anchor="middle" font-size="15">{escape(title)}</text>',
        *_axes(most_x, most_y),
    ]
    positions = [(_x(p.per_user, most_x), _y(p.per_device, most_y)) for p in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#999999"/>')
    for point, (x, y) in zip(points, positions, strict=True):
        color = _COLORS[plans.index(point.plan) % len(_COLORS)]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{point.users}</text>')
    for number, plan in enumerate(plans):
        y = 48 + 16 * number
        color = _COLORS[number % len(_COLORS)]
        parts.append(f'<circle cx="{_WIDTH - 200}" cy="{y - 4}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{_WIDTH - 190}" y="{y}">{escape(plan)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axes(most_x: float, most_y: float) -> list[str]:
    left, bottom = _x(0, 1), _y(0, 1)
    parts = [
        f'<path d="M{left},40 V{bottom} H{_WIDTH - 24}" fill="none" stroke="black"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "tokens per second of a user (numbers: users of a replica)</text>",
        f'<text transform="translate(16,{_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        "tokens per second of a device</text>",
    ]
    for k in range(1, 5):
        x, y = most_x * k / 5, most_y * k / 5
        parts.append(
            f'<text x="{_x(x, most_x):.0f}" y="{bottom + 16}" text-anchor="middle">{x:.0f}</text>'
        )
        parts.append(
            f'<text x="{left - 6}" y="{_y(y, most_y) + 4:.0f}" text-anchor="end">{y:.0f}</text>'
        )
    return parts


def _x(value: float, most: float) -> float:
    return _MARGIN + value / most * (_WIDTH - _MARGIN - 24)


def _y(value: float, most: float) -> float:
    return _HEIGHT - 44 - value / most * (_HEIGHT - 44 - 40)
