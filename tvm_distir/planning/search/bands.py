# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the error bands of the plans that a search found, and which of them are level."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tvm_distir.planning.error_band import ErrorBand, band_of, family_of
from tvm_distir.support.display import units

if TYPE_CHECKING:
    from .result import CandidateRow, SearchResult


def row_band(result: SearchResult, row: CandidateRow) -> ErrorBand | None:
    """Return the error band of a simulated row; None where the kind of step is unknown."""
    if result.kind is None or row.time_s is None:
        return None
    parts = dict(part.split("/") for part in row.parts.split() if "/" in part)
    counts = {kind: float(count) for kind, count in parts.items()}
    family = family_of(row.candidate.stages, row.candidate.devices, counts)
    return band_of(replace(result.kind, family=family))


def band_data(result: SearchResult, row: CandidateRow) -> dict[str, object]:
    """Return the error band of a row as an entry of JSON; empty where there is none."""
    band = row_band(result, row)
    return {} if band is None or row.time_s is None else {"band": band.to_dict(row.time_s)}


def level_plans(result: SearchResult) -> int:
    """Return how many plans, the fastest first, have bands that overlap with the first's."""
    bands = [(row_band(result, plan.row), plan.time_s) for plan in result.plans]
    ends = [band.around(time_s) for band, time_s in bands if band is not None]
    return next((n for n, (low_s, _) in enumerate(ends) if low_s > ends[0][1]), len(ends))


def band_lines(result: SearchResult) -> list[str]:
    """Return a line on the band of the fastest plan and the plans that are level with it."""
    band = row_band(result, result.plans[0].row) if result.plans else None
    if band is None:
        return []
    low_s, high_s = band.around(result.plans[0].time_s)
    absent = f"; not measured: {', '.join(band.absent)}" if band.absent else ""
    count, level = len(result.plans), level_plans(result)
    plans = f"plans 1 to {level} of {count}" if level > 1 else f"plan 1 alone of {count}"
    return [
        f"error band of the fastest plan: {units.duration(low_s)} to {units.duration(high_s)} "
        f"({band.rows} measured steps: {band.group}{absent}); level within error bands: {plans}"
    ]
