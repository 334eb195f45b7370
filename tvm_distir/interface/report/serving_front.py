# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Draw the front of ways of serving as a picture in SVG."""

from __future__ import annotations

import itertools

from tvm_distir.planning import ServingSearchResult

from .pages import render

_WIDTH, _HEIGHT = 760, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 40, _WIDTH - 24, _HEIGHT - 44
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b")


def front_svg(result: ServingSearchResult, title: str) -> str:
    """Return the front of a search: tokens per second of a device against those of a user."""
    most_x = max((p.per_user for p in result.front), default=1.0) * 1.08
    most_y = max((p.per_device for p in result.front), default=1.0) * 1.08

    def pixel(per_user: float, per_device: float) -> tuple[float, float]:
        x = _LEFT + per_user / most_x * (_RIGHT - _LEFT)
        return x, _BOTTOM - per_device / most_y * (_BOTTOM - _TOP)

    fifths = [(most_x * k / 5, most_y * k / 5) for k in range(1, 5)]
    colors = dict(zip(dict.fromkeys(p.plan for p in result.front), itertools.cycle(_COLORS)))
    return render(
        "serving_front.svg.j2", title=title, colors=colors, width=_WIDTH, height=_HEIGHT,
        left=_LEFT, top=_TOP, right=_RIGHT, bottom=_BOTTOM,
        ticks=[(*pixel(*tick), *tick) for tick in fifths],
        dots=[
            (*pixel(p.per_user, p.per_device), p.users, colors[p.plan]) for p in result.front
        ],
    )  # fmt: skip
