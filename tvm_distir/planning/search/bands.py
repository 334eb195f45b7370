# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the error bands of the plans that a search found, and which of them are level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_distir.planning.error_band import ErrorBand, StepKind, band_of, family_of
from tvm_distir.support import printable
from tvm_distir.support.display import units

from .candidates import Candidate


def plan_band(kind: StepKind, candidate: Candidate, parts: str) -> ErrorBand:
    """Return the error band of a plan of a candidate.

    Parameters
    ----------
    kind : StepKind
        Of the step, whatever family it states.
    candidate : Candidate
    parts : str
        What the plan divides, as :func:`.divided_parts.parts_text` says it; empty where that is
        unknown, and then the family is.
    """
    divided = dict(part.split("/") for part in parts.split() if "/" in part)
    counts = {name: float(count) for name, count in divided.items()}
    family = family_of(candidate.stages, candidate.devices, counts) if parts else ""
    return band_of(replace(kind, family=family))


def level_count(bands: Sequence[tuple[ErrorBand, float]]) -> int:
    """Return how many plans have bands that overlap with the first's, of bands and times."""
    ends = [band.around(time_s) for band, time_s in bands]
    return next((n for n, (low_s, _) in enumerate(ends) if low_s > ends[0][1]), len(ends))


def band_line(band: ErrorBand, time_s: float, level: int, count: int) -> str:
    """Return a line on the band of the fastest of ``count`` plans and those level with it."""
    low_s, high_s = band.around(time_s)
    absent = f"; not measured: {', '.join(map(printable, band.absent))}" if band.absent else ""
    group = f"{band.rows} measured steps: {printable(band.group)}{absent}"
    plans = f"plans 1 to {level} of {count}" if level > 1 else f"plan 1 alone of {count}"
    return (
        f"error band of the fastest plan: {units.duration(low_s)} to {units.duration(high_s)} "
        f"({group}); level within error bands: {plans}"
    )
