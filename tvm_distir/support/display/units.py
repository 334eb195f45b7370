# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Format sizes, times, rates and shares with units."""

from __future__ import annotations

import math

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "k", "M", "G", "T", "P", "E")
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def _three(value: float) -> str:
    """Format three significant digits without an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value else "0"


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    sign, size = ("-", -value) if value < 0 else ("", float(value))
    at = 0
    while at < len(units) - 1 and size >= step * 0.9995:
        size /= step
        at += 1
    text = f"{size:.0f}" if at == 0 and size == int(size) else _three(size)
    return f"{sign}{text} {units[at]}".rstrip()


def size(value_bytes: float) -> str:
    """Format bytes with a binary unit: ``1.50 GiB``."""
    return _scaled(value_bytes, 1024.0, _BYTES)


def count(value: float, unit: str = "") -> str:
    """Format a count with a decimal prefix: ``312 TFLOP``."""
    text = _scaled(value, 1000.0, _COUNTS)
    if not unit:
        return text.replace(" ", "")
    return text + unit if " " in text else f"{text} {unit}"


def duration(value_s: float) -> str:
    """Format seconds with a suitable unit: ``12.3 ms``."""
    if not math.isfinite(value_s):
        return str(value_s)
    if value_s == 0:
        return "0 s"
    sign, value_s = ("-", -value_s) if value_s < 0 else ("", value_s)
    for scale, unit in _TIMES:
        if value_s >= scale * 0.9995:
            return f"{sign}{_three(value_s / scale)} {unit}"
    return f"{sign}{_three(value_s / 1e-9)} ns"


def difference(value_s: float) -> str:
    """Format a difference of times with its sign: ``+12.3 ms``."""
    return f"{'-' if value_s < 0 else '+'}{duration(abs(value_s))}"


def share(part: float, total: float) -> str:
    """Format a share in percent, with one decimal below ten: ``4.2%``."""
    if total <= 0:
        return "-"
    value = 100.0 * part / total
    return f"{value:.1f}%" if value < 9.95 else f"{value:.0f}%"


def shape(dims: tuple[int, ...]) -> str:
    """Format the dims of a tensor: ``4096 x 1024``, ``scalar``."""
    return " x ".join(str(d) for d in dims) if dims else "scalar"
