# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sections with figures: the roofline as SVG, the critical path."""

from __future__ import annotations

import math

from tvm_distir.performance import OpTime

from . import units
from .markup import bar, esc, op_colours, row, section, swatch, table
from .model import Analysis

_WIDTH, _HEIGHT = 760, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 16, 14, 44
_NAMED = 6
"""How many ops are named in the roofline."""


def roofline(analysis: Analysis) -> str:
    """Arithmetic of each op against its intensity, under the two roofs of a device."""
    peak = analysis.hardware.peak_flops
    rate = analysis.hardware.memory_bandwidth_bytes_per_s
    shown = [one for one in analysis.ops if one.flops and one.bytes_moved and one.time_s > 0]
    if not peak or not rate or not shown:
        return ""
    found = [(one.flops / one.bytes_moved, one.flops / one.time_s) for one in shown]
    xs = [intensity for intensity, _ in found] + [peak / rate]
    ys = [speed for _, speed in found] + [peak]
    scale = _Scale(_decades(xs), _decades(ys))
    ridge = peak / rate
    low = scale.x[0]
    roofs = [(low, low * rate), (ridge, peak), (scale.x[1], peak)]
    if roofs[0][1] < scale.y[0]:
        roofs[0] = (scale.y[0] / rate, scale.y[0])
    line = " ".join(f"{scale.at_x(x):.1f},{scale.at_y(y):.1f}" for x, y in roofs)
    drawn = scale.grid() + f'<polyline points="{line}" class="roof"/>'
    drawn += _points(analysis, shown, found, scale)
    body = (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="roofline of the ops">{drawn}</svg>'
    )
    note = (
        f"A point is an op, as large as its time. Roofs: {esc(units.count(peak, 'FLOP/s'))} of "
        f"arithmetic and {esc(units.count(rate, 'B/s'))} of memory; they meet at "
        f"{ridge:.0f} FLOP per byte. Ops without arithmetic are not shown."
    )
    return section("Roofline", "roofline", body, note)


def _decades(values: list[float]) -> tuple[float, float]:
    """Powers of ten around values."""
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)) + 1e-9)
    return 10.0**low, 10.0 ** max(high, low + 1)


class _Scale:
    """Places of numbers in the plot, both axes logarithmic."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x, self.y = x, y

    def at_x(self, value: float) -> float:
        """From the left."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * self._share(value, self.x)

    def at_y(self, value: float) -> float:
        """From the top."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * self._share(value, self.y)

    @staticmethod
    def _share(value: float, ends: tuple[float, float]) -> float:
        low, high = map(math.log10, ends)
        return (math.log10(value) - low) / (high - low)

    def grid(self) -> str:
        """Lines and labels of the powers of ten."""
        parts = []
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for value in self._powers(self.x):
            at = self.at_x(value)
            parts.append(f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}"/>')
            parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" class="mid">{value:g}</text>')
        for value in self._powers(self.y):
            at = self.at_y(value)
            parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
            label = esc(units.count(value, "FLOP/s"))
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" class="end">{label}</text>')
        middle = (_LEFT + right) / 2
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" class="mid">FLOP per byte</text>')
        return "".join(parts)

    @staticmethod
    def _powers(ends: tuple[float, float]) -> list[float]:
        low, high = (round(math.log10(end)) for end in ends)
        step = max(1, (high - low) // 8)
        return [10.0**power for power in range(low, high + 1, step)]


def _points(
    analysis: Analysis, ops: list[OpTime], found: list[tuple[float, float]], scale: _Scale
) -> str:
    colours = op_colours(analysis)
    most = max(one.time_s for one in ops)
    parts = []
    named: list[tuple[float, float]] = []
    for one, (intensity, speed) in zip(ops, found, strict=True):
        x, y = scale.at_x(intensity), scale.at_y(speed)
        radius = 3 + 11 * math.sqrt(one.time_s / most)
        said = (
            f"{one.op}: {units.duration(one.time_s)}, {units.count(speed, 'FLOP/s')}, "
            f"{intensity:.3g} FLOP per byte, bound by {one.bound_by}"
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
            f'style="fill:var(--o{colours[one.op]})"><title>{esc(said)}</title></circle>'
        )
        free = all(abs(x - left) > 90 or abs(y - top) > 12 for left, top in named)
        if free and len(named) < _NAMED:
            named.append((x, y))
            parts.append(
                f'<text x="{x + radius + 3:.1f}" y="{y + 4:.1f}" class="name">{esc(one.op)}</text>'
            )
    return "".join(parts)


def critical_path(analysis: Analysis) -> str:
    """What the longest chain is made of."""
    parts = analysis.path()
    if not parts:
        return ""
    colours = op_colours(analysis)
    most, whole_s = parts[0].time_s, sum(part.time_s for part in parts)
    rows = []
    for one in parts:
        known = colours.get(one.name)
        paint = "--idle" if not one.stream else "--compute" if one.stream == "compute" else "--comm"
        rows.append(
            row(
                [
                    ("" if known is None else swatch(known)) + esc(one.name),
                    esc(one.stream or "-"),
                    str(one.count),
                    units.duration(one.time_s),
                    units.share(one.time_s, whole_s),
                    bar(one.time_s, most, paint),
                ],
                "llrrrl",
            )
        )
    head = ("what", "stream", "count", "time", "share", "")
    note = "From the end of the step back to what each thing waited for; the times add up to it."
    return section("Critical path", "path", table(head, rows, "llrrrl"), note)
