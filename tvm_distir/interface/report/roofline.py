# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the geometry of the roofline plot: FLOP/s of each op against its intensity."""

from __future__ import annotations

import math
from typing import NamedTuple

from tvm_distir.support.display import units

from .model import Analysis

_WIDTH, _HEIGHT = 760, 360
_LEFT, _TOP, _RIGHT, _BOTTOM = 92, 14, _WIDTH - 16, _HEIGHT - 44
_NAMED = 6
"""How many ops are named in the plot."""


class OpPoint(NamedTuple):
    """An op in the plot; ``x``, ``y`` and ``radius`` are in pixels, ``words`` its figures."""

    op: str
    title: str
    x: float
    y: float
    radius: float
    words: str
    is_named: bool


class RooflinePlot(NamedTuple):
    """The plot, in pixels from the upper left corner.

    Attributes
    ----------
    peak, rate : float
        The roofs: FLOP/s and bytes per second.
    roof : list of (x, y)
    x_ticks, y_ticks : list of (place, label)
    points : list of OpPoint
    width, height : int
    frame : (left, top, right, bottom)
        Of the area between the axes.
    """

    peak: float
    rate: float
    roof: list[tuple[float, float]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    points: list[OpPoint]
    width: int = _WIDTH
    height: int = _HEIGHT
    frame: tuple[int, int, int, int] = (_LEFT, _TOP, _RIGHT, _BOTTOM)


class _Axis:
    """A logarithmic axis over powers of ten around values, between two pixels."""

    def __init__(self, values: list[float], start: int, end: int) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values)) + 1e-9), self.low + 1)
        self._start, self._end = start, end

    def position(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + (self._end - self._start) * share

    def powers(self) -> list[float]:
        step = max(1, (self.high - self.low) // 8)
        return [10.0**power for power in range(self.low, self.high + 1, step)]


def roofline_plot(analysis: Analysis) -> RooflinePlot | None:
    """Draw the ops under the two roofs of a device; None where there is nothing to draw."""
    peak = analysis.hardware.roof_flops or analysis.hardware.peak_flops
    rate = analysis.hardware.memory_bandwidth_bytes_per_s
    ops = [op for op in analysis.ops if op.flops and op.bytes_moved and op.time_s > 0]
    if not peak or not rate or not ops:
        return None
    intensities, speeds = (
        [op.flops / op.bytes_moved for op in ops],
        [op.flops / op.time_s for op in ops],
    )
    x_axis = _Axis([*intensities, peak / rate], _LEFT, _RIGHT)
    y_axis = _Axis([*speeds, peak], _BOTTOM, _TOP)
    low = max(10.0**x_axis.low, 10.0**y_axis.low / rate)
    roof = [(low, low * rate), (peak / rate, peak), (10.0**x_axis.high, peak)]
    most_s = max(op.time_s for op in ops)
    points: list[OpPoint] = []
    for op, intensity, speed in zip(ops, intensities, speeds, strict=True):
        x, y = x_axis.position(intensity), y_axis.position(speed)
        named = [point for point in points if point.is_named]
        is_free = all(abs(x - point.x) > 200 or abs(y - point.y) > 12 for point in named)
        words = (
            f"{op.title}, {op.phase}: {units.duration(op.time_s)}, {units.count(speed, 'FLOP/s')}, "
            f"{intensity:.3g} FLOP per byte, bound by {op.bound_by}"
        )
        radius = 3 + 11 * math.sqrt(op.time_s / most_s)
        title = op.module or op.op
        points.append(OpPoint(op.op, title, x, y, radius, words, is_free and len(named) < _NAMED))
    return RooflinePlot(
        peak,
        rate,
        [(x_axis.position(x), y_axis.position(y)) for x, y in roof],
        [(x_axis.position(value), f"{value:g}") for value in x_axis.powers()],
        [(y_axis.position(value), units.count(value, "FLOP/s")) for value in y_axis.powers()],
        points,
    )
