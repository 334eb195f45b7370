# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the outcome of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_distir.performance import Result, simulate
from tvm_distir.support import REFUSALS, DistIRError

from .configuration import Configuration
from .pipeline import ProgramPipeline

OK = "ok"
ROW, STRUCTURE = "row", "structure"
"""Ways: through the whole pipeline by itself; from the numbers of its structure."""
BOUNDS = ("compute", "memory", "launch", "host", "communication", "idle")
"""The resources that may bound a step; of equal ones the first."""
COLUMNS = ("time_s", "peak_memory_bytes", "fits", "bound_by", "way", "status")


@dataclass(frozen=True)
class RowOutcome:
    """Outcome of a row.

    Attributes
    ----------
    status : str
        ``ok``, or why the row is impossible.
    way : str
        ``structure`` or ``row``.
    time_s : float
    peak_bytes : int
        The peak memory of the fullest device.
    bound_by : str
        The resource, from :data:`BOUNDS`, that takes most of the busiest device's step.
    """

    status: str = OK
    way: str = ROW
    time_s: float = 0.0
    peak_bytes: int = 0
    bound_by: str = ""

    def cells(self, capacity_bytes: int) -> tuple[Any, ...]:
        """Return the values of :data:`COLUMNS`; ``capacity_bytes`` is the memory of a device."""
        if self.status != OK:
            return "", "", "", "", self.way, self.status
        fits = int(self.peak_bytes <= capacity_bytes)
        return self.time_s, self.peak_bytes, fits, self.bound_by, self.way, self.status


def through_pipeline(pipeline: ProgramPipeline, row: Configuration) -> RowOutcome:
    """Take a row through the full pipeline, and simulate it."""
    try:
        result = simulate(pipeline.program(row), pipeline.system)
        return RowOutcome(OK, ROW, result.time_s, result.peak_memory_bytes, bound_by(result))
    except REFUSALS as error:
        return RowOutcome(reason(error))


def reason(error: DistIRError) -> str:
    """Return why a row is impossible, in a line: of several faults the first."""
    first = error.violations[0] if error.violations else error
    more = len(error.violations) - 1
    return " ".join(str(first).split()) + (f" (and {more} more)" if more > 0 else "")


def bound_by(result: Result) -> str:
    """Return the resource that bounds most of the busiest device's step.

    Kernels by what bounds most of each op's time; ``communication`` is the time of collectives, as
    far as it does not fit beside kernels; ``idle`` the rest.
    """
    totals = {}
    for lane in result.lanes:
        parts = dict.fromkeys(BOUNDS, 0.0)
        for op in lane.ops:
            if op.bound_by != "network":  # else what collectives cost kernels beside them
                parts[op.bound_by if op.bound_by in parts else "compute"] += op.time_s
        moved = sum(
            c.time_s for c in result.collectives if c.mesh == lane.mesh and c.kind != "send"
        )
        totals[lane.mesh] = (sum(parts.values()) + moved, moved, parts)
    work, moved, parts = max(totals.values(), key=lambda total: total[0])
    rest = max(result.time_s - (work - moved), 0.0)
    parts["communication"] = min(moved, rest)
    parts["idle"] = rest - parts["communication"]
    return max(BOUNDS, key=lambda bound: parts[bound])
