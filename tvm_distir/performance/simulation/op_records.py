# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Record ops of a timeline: their times by name, and their facts for traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.performance.event_loop.function_summaries import Ints
from tvm_distir.performance.traces.records import STREAMS, RecordKind

from .device_results import OpTime
from .op_costs import COMPUTE, SLOWDOWN, OpRow


def seconds(time_ps: int) -> float:
    """Return the picoseconds as seconds."""
    return time_ps / PICOSECONDS


def all_seconds(times_ps: Ints) -> list[float]:
    """Return the picoseconds as seconds, each as :func:`seconds` gives it."""
    if times_ps.max(initial=0) < 1 << 53:  # else their conversion rounds, and then the division
        return list((times_ps / PICOSECONDS).tolist())
    return [seconds(time_ps) for time_ps in times_ps.tolist()]


def op_times(
    rows: Sequence[OpRow], counts: Sequence[int], slowed: float = 1.0
) -> tuple[OpTime, ...]:
    """Compute ops by name, the longest first, from how often each row is run.

    ``slowed`` is the share of the delays beside collectives by which kernels take longer.
    """
    sums: dict[str, list[int]] = {}
    bounds: dict[str, dict[str, int]] = {}
    for row, count in zip(rows, counts, strict=True):
        if row.stream != COMPUTE or row.op.kind == "wait" or not count:
            continue
        name, op, duration = row.op.title, row.op, count * row.duration_ps
        if op.kind == SLOWDOWN:
            duration = round(slowed * duration)
        entry = sums.setdefault(name, [0, 0, 0, 0])
        for i, value in enumerate((1, 0, op.flops, op.bytes_read + op.bytes_written)):
            entry[i] += value * count
        entry[1] += duration
        by_bound = bounds.setdefault(name, {})
        by_bound[row.bound_by] = by_bound.get(row.bound_by, 0) + duration
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return tuple(
        OpTime(
            name, count, seconds(duration), flops, moved,
            max(bounds[name], key=lambda bound: (bounds[name][bound], bound)),
        )
        for name, (count, duration, flops, moved) in ordered
    )  # fmt: skip


def op_kinds(ops: Iterable[tuple[OpRow, str]]) -> list[RecordKind]:
    """Return the records of ops and enclosing calls for traces."""
    return [
        RecordKind(row.op.title, STREAMS[row.stream], event_args(row, scope)) for row, scope in ops
    ]


def event_args(row: OpRow, scope: str) -> dict[str, Any]:
    """Return the arguments of an op for events and traces: see :class:`.stage_timelines.Event`."""
    op = row.op
    args: dict[str, Any] = {
        "op": op.op,
        "binding": op.name,
        "scope": scope,
        "bound_by": row.bound_by,
    }
    if op.kind in ("wait", SLOWDOWN):
        return args
    if op.kind == "compute":
        args |= {"flops": op.flops, "bytes": op.bytes_read + op.bytes_written}
        if not op.modelled:
            args["unmodelled"] = op.reason
        return args
    args |= {"payload_bytes": op.payload_bytes, "wire_bytes": row.wire_bytes}
    if op.kind == "collective":
        args["group_size"] = op.group_size
    return args
