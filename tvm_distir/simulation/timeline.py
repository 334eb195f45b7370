# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The scheduled tasks of one device, and the tables that sum them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..system import PICOSECONDS
from .costs import COMPUTE, STREAMS, OpRow
from .flat import CallRow, Flat, scopes
from .lanes import Event, FunctionTime, OpTime

Ints = npt.NDArray[np.int64]


def seconds(time_ps: int) -> float:
    """Picoseconds as seconds."""
    return time_ps / PICOSECONDS


def short_name(op: str) -> str:
    """Name of an op without its namespace."""
    return op.removeprefix("relax.").removeprefix("dist.")


@dataclass(frozen=True)
class Timeline:
    """The tasks of one device with their times.

    Attributes
    ----------
    device : int
    root : str
        Name of the entry function.
    flat : Flat
    rows : sequence of OpRow
    calls : sequence of CallRow
    start, end : int64 arrays (tasks,)
        In picoseconds.
    """

    device: int
    root: str
    flat: Flat
    rows: Sequence[OpRow]
    calls: Sequence[CallRow]
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return int(self.flat.row.size)

    def __iter__(self) -> Iterator[Event]:
        names = scopes(self.flat, self.calls, self.root)
        columns = (self.flat.row, self.flat.frame, self.start, self.end)
        for number, frame, start, end in zip(*(c.tolist() for c in columns), strict=True):
            row = self.rows[number]
            yield Event(
                self.device,
                STREAMS[row.stream],
                short_name(row.op.op),
                seconds(start),
                seconds(end - start),
                _event_args(row, names[frame]),
            )

    def streams(self) -> Ints:
        """Stream of each task."""
        table = np.array([row.stream for row in self.rows], np.int64)
        return table[self.flat.row] if len(self) else self.flat.row

    def counts(self) -> list[int]:
        """How often each row is run."""
        found: list[int] = np.bincount(self.flat.row, minlength=len(self.rows)).tolist()
        return found

    def function_times(self) -> tuple[FunctionTime, ...]:
        """Functions in order of their first call, callees included."""
        took = self.end - self.start
        return listed(function_table(self.flat, self.rows, self.calls, self.root, took))


def op_times(rows: Sequence[OpRow], counts: Sequence[int]) -> tuple[OpTime, ...]:
    """Compute ops by name, the longest first, from how often each row is run."""
    sums: dict[str, list[int]] = {}
    bounds: dict[str, dict[str, int]] = {}
    for row, count in zip(rows, counts, strict=True):
        if row.stream != COMPUTE or row.op.kind == "wait" or not count:
            continue
        name, op, spent = short_name(row.op.op), row.op, count * row.duration_ps
        entry = sums.setdefault(name, [0, 0, 0, 0])
        for i, value in enumerate((1, 0, op.flops, op.bytes_read + op.bytes_written)):
            entry[i] += value * count
        entry[1] += spent
        by_bound = bounds.setdefault(name, {})
        by_bound[row.bound_by] = by_bound.get(row.bound_by, 0) + spent
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return tuple(
        OpTime(
            name, count, seconds(spent), flops, moved,
            max(bounds[name], key=lambda bound: (bounds[name][bound], bound)),
        )
        for name, (count, spent, flops, moved) in ordered
    )  # fmt: skip


def total_flops(rows: Sequence[OpRow], counts: Sequence[int]) -> int:
    """Arithmetic operations of rows that are run so often."""
    return sum(count * row.op.flops for row, count in zip(rows, counts, strict=True))


def function_table(
    flat: Flat, rows: Sequence[OpRow], calls: Sequence[CallRow], root: str, took: Ints
) -> dict[str, list[Any]]:
    """By function, in order of the first call: depth, calls, compute and other time, FLOPs.

    ``took`` has the durations of the tasks.
    """
    frames = int(flat.frame_parent.size)
    compute = np.array([row.stream == COMPUTE for row in rows], bool)
    compute = compute[flat.row] if flat.row.size else np.zeros(0, bool)
    flops = np.array([row.op.flops for row in rows], dtype=object)
    work = flops[flat.row] if flat.row.size else flops[:0]
    sums = np.zeros((frames, 3), dtype=object)
    np.add.at(sums[:, 0], flat.frame[compute], took[compute].astype(object))
    np.add.at(sums[:, 1], flat.frame[~compute], took[~compute].astype(object))
    np.add.at(sums[:, 2], flat.frame, work)
    parents, frame_calls = flat.frame_parent.tolist(), flat.frame_call.tolist()
    depth = [0] * frames
    for frame in range(1, frames):
        depth[frame] = depth[parents[frame]] + 1
    for frame in range(frames - 1, 0, -1):
        sums[parents[frame]] += sums[frame]
    tables: dict[str, list[Any]] = {}
    for frame in range(frames):
        call = frame_calls[frame]
        name = root if call < 0 else calls[call].callee
        entry = tables.setdefault(name, [depth[frame], 0, 0, 0, 0])
        entry[1] += 1
        for i in range(3):
            entry[2 + i] += sums[frame, i]
    return tables


def listed(tables: Mapping[str, Sequence[Any]]) -> tuple[FunctionTime, ...]:
    """What :func:`function_table` gives, in seconds."""
    return tuple(
        FunctionTime(name, level, count, seconds(spent), seconds(talked), int(done))
        for name, (level, count, spent, talked, done) in tables.items()
    )


def _event_args(row: OpRow, scope: str) -> dict[str, Any]:
    op = row.op
    args: dict[str, Any] = {
        "op": op.op,
        "binding": op.name,
        "scope": scope,
        "bound_by": row.bound_by,
    }
    if op.kind == "wait":
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
