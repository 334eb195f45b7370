# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the result of a search of ways of serving as one HTML file."""

from __future__ import annotations

from markupsafe import Markup

from tvm_distir.planning import ServingSearchResult
from tvm_distir.support.display import units

from .pages import render
from .serving_front import front_svg


def serving_page(result: ServingSearchResult, title: str) -> str:
    """Write a search as a self-contained HTML page: front, rates, what was cut, the best choice.

    Parameters
    ----------
    result : ServingSearchResult
    title : str

    Returns
    -------
    page : str
        Deterministic for a result.
    """
    return render(
        "serving.html.j2",
        title=title,
        picture=Markup(front_svg(result, title)),  # its texts are escaped
        front=[
            [
                p.plan, p.users, f"{p.per_user:.1f}", f"{p.per_device:.1f}",
                units.duration(p.ttft_p50_s),
            ]
            for p in result.front
        ],
        choices=[
            [
                c.plan, c.scheduler, c.devices, f"{c.per_device:.3f}",
                f"{c.bound_per_s / c.devices:.3f}",
            ]
            for c in result.choices
        ],
        cuts=[[pruned.plan, pruned.why] for pruned in result.cuts],
        best=None if result.best is None else result.best.text(),
    )  # fmt: skip
