# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the outcome of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_distir.performance import DeviceGroupResult, Result, simulate
from tvm_distir.support import REFUSALS, DistIRError

from .configuration import Configuration
from .pipeline import ProgramPipeline

OK = "ok"
ROW, STRUCTURE = "row", "structure"
"""Ways: through the whole pipeline by itself; from the numbers of its structure."""
BOUNDS = ("compute", "memory", "launch", "host", "communication", "idle")
"""The resources that may bound a step; of equal ones the first."""
NETWORK = "network"
"""What bounds the delays of kernels beside collectives."""
ROUNDING = 1e-9
"""More than the share of a step that sums of seconds in another order may differ by."""
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
    far as it does not fit beside kernels; ``idle`` the rest. An op is that of a module and pass,
    which take long to tell. So ops are those of all modules and passes at first, and of single
    ones only where that could change the answer.
    """
    kernels = [_by_title(lane) for lane in result.lanes]
    if None not in kernels:
        parts, error_s = _step_parts(result, [known for known in kernels if known is not None])
        most, second = sorted(parts.values(), reverse=True)[:2]
        if most - second > 2 * error_s + ROUNDING * result.time_s:
            return _largest(parts)
    return _largest(_step_parts(result, [(_by_op(lane), 0.0) for lane in result.lanes])[0])


def _largest(parts: Mapping[str, float]) -> str:
    return max(BOUNDS, key=lambda bound: parts[bound])


def _by_op(lane: DeviceGroupResult) -> dict[str, float]:
    """Return the seconds of kernels by what bounds most of the time of each op."""
    parts = dict.fromkeys(BOUNDS, 0.0)
    for op in lane.ops:
        if op.bound_by != NETWORK:  # else what collectives cost kernels beside them
            parts[op.bound_by if op.bound_by in parts else "compute"] += op.time_s
    return parts


def _by_title(lane: DeviceGroupResult) -> tuple[dict[str, float], float] | None:
    """Return the seconds of kernels by what bounds them, and how far :func:`_by_op` may differ.

    In each module and pass, the time that moves to another resource is at most that of the
    resources that bound less of the title as a whole. None where kernels of a title are delayed by
    collectives and others are not: then their sum may differ too.
    """
    parts, error_s = dict.fromkeys(BOUNDS, 0.0), 0.0
    for bounds in lane.bound_times().values():
        if NETWORK in bounds:
            if len(bounds) > 1:
                return None
            continue
        for bound, time_s in bounds.items():
            parts[bound if bound in parts else "compute"] += time_s
        error_s += sum(bounds.values()) - max(bounds.values())
    return parts, error_s


def _step_parts(
    result: Result, kernels: Sequence[tuple[Mapping[str, float], float]]
) -> tuple[dict[str, float], float]:
    """Return the parts of the busiest device's step, and the error of those of its kernels."""
    totals = {}
    for lane, (parts, error_s) in zip(result.lanes, kernels, strict=True):
        moved = sum(
            c.time_s for c in result.collectives if c.mesh == lane.mesh and c.kind != "send"
        )
        totals[lane.mesh] = (sum(parts.values()) + moved, moved, parts, error_s)
    work, moved, parts, error_s = max(totals.values(), key=lambda total: total[0])
    rest = max(result.time_s - (work - moved), 0.0)
    communication = min(moved, rest)
    return {**parts, "communication": communication, "idle": rest - communication}, error_s
