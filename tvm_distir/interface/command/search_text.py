# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Format the result of a search as text."""

from __future__ import annotations

from typing import Any


def search_text(result: Any) -> str:
    """Return the tables of plans and placement costs."""
    from tvm_distir.interface.report.search_page import seconds
    from tvm_distir.support.display import units

    head = ("#", "plan", "divides", "step", "compute", "comm", "cost", "gap", "peak")
    rows: list[tuple[str, ...]] = [head]
    for number, plan in enumerate(result.plans, 1):
        row = plan.row
        rows.append(
            (
                str(number),
                " = ".join([row.candidate.key, *plan.also]) + (f" ({row.why})" if row.why else ""),
                row.parts or "-",
                units.duration(plan.time_s),
                *("-" if share is None else units.share(share, 1.0) for share in row.shares),
                units.duration(row.price_s) if row.price_s is not None else "-",
                f"{100 * row.gap:.2f}%" if row.gap is not None else "-",
                units.size(row.peak_bytes or 0),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (1, 2) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    counts = ", ".join(f"{count} {state}" for state, count in sorted(result.space.items()))
    lines += ["", f"candidates: {counts}" + ("" if result.complete else " (stopped early)")]
    if result.plans and result.least_s:
        lines.append(f"lower bound of the step time: {units.duration(result.least_s)}")
    if result.baseline is not None and result.baseline.time_s and result.plans:
        other, best = result.baseline.time_s, result.plans[0].time_s
        lines.append(
            f"compared with {result.baseline.why} on {result.baseline.candidate.key}: "
            f"{units.duration(other)}, {100 * (best / other - 1):+.1f}%"
            + ("" if result.baseline.state == "solved" else "; does not fit")
        )
    if result.why:
        whys: list[tuple[str, ...]] = [
            ("weight", "count", "placement", "second best", "added cost")
        ]
        for why in result.why:
            name = f"{why.weight} ({why.entry})"
            whys.append((name, str(why.alike), why.form, why.other, seconds(why.dearer_s)))
        lines += ["", "cost added by the second-best placement of each weight", *_columns(whys)]
    return "\n".join(lines) + "\n"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(x.ljust(width) for x, width in zip(row, widths)).rstrip() for row in rows]
