# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Format the result of a search as text."""

from __future__ import annotations

from typing import Any


def search_text(result: Any) -> str:
    """The table of plans."""
    from tvm_distir.interface.report import units
    from tvm_distir.interface.report.search_page import seconds

    head = ("#", "plan", "step", "compute", "comm", "labels", "gap", "peak")
    rows = [head]
    for number, found in enumerate(result.plans, 1):
        row = found.row
        rows.append(
            (
                str(number),
                row.candidate.key + (f" ({row.why})" if row.why else ""),
                units.duration(found.time_s),
                *("-" if share is None else units.share(share, 1.0) for share in row.shares),
                units.duration(row.price_s) if row.price_s is not None else "-",
                f"{100 * row.gap:.2f}%" if row.gap is not None else "-",
                units.size(row.peak_bytes or 0),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 1 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    said = ", ".join(f"{count} {state}" for state, count in sorted(result.space.items()))
    lines += ["", f"candidates: {said}" + ("" if result.complete else " (stopped early)")]
    if result.plans and result.least_s:
        lines.append(f"proved: no plan of these takes less than {units.duration(result.least_s)}")
    if result.baseline is not None and result.baseline.time_s and result.plans:
        other, best = result.baseline.time_s, result.plans[0].time_s
        lines.append(
            f"compared with {result.baseline.why} on {result.baseline.candidate.key}: "
            f"{units.duration(other)}, {100 * (best / other - 1):+.1f}%"
            + ("" if result.baseline.state == "solved" else "; it does not fit")
        )
    if result.why:
        whys: list[tuple[str, ...]] = [("weight", "alike", "lies", "second best", "dearer")]
        for one in result.why:
            name = f"{one.weight} ({one.entry})"
            whys.append((name, str(one.alike), one.form, one.other, seconds(one.dearer_s)))
        lines += ["", "what the second best placement of the weights would add", *_columns(whys)]
    return "\n".join(lines) + "\n"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(x.ljust(width) for x, width in zip(row, widths)).rstrip() for row in rows]
