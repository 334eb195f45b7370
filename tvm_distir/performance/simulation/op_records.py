# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Record ops of a timeline: their times by name, and their facts for traces."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.performance.event_loop.function_summaries import Ints
from tvm_distir.performance.traces.records import STREAMS, RecordKind

from .device_results import HOST_MODULE, OpTime
from .module_times import ModuleNames
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
    names: ModuleNames, rows: Sequence[OpRow], counts: Sequence[int], slowed: float
) -> tuple[OpTime, ...]:
    """Compute ops by name, module and pass, the longest first, from how often each row is run.

    ``slowed`` is the share of the delays beside collectives by which kernels take longer.
    """
    sums = defaultdict[tuple[str, str, str], list[int]](lambda: [0, 0, 0, 0])
    bounds = defaultdict[tuple[str, str, str], Counter[str]](Counter)
    for row, count in zip(rows, counts, strict=True):
        if row.stream != COMPUTE or row.op.kind == "wait":
            continue
        op, each_ps = row.op, row.duration_ps * (slowed if row.op.kind == SLOWDOWN else 1)
        moved, parts = op.bytes_read + op.bytes_written, names.of(row)
        shares = itertools.accumulate(share for *_, share in parts)
        ends = [round(count * share) for share in shares]  # so parts of a count add up to it
        for (module, phase, _), start, end in zip(parts, [0, *ends], ends, strict=False):
            key, times = (op.title, module, phase), end - start
            part_ps = round(each_ps * end) - round(each_ps * start)
            entry, more = sums[key], (times, part_ps, times * op.flops, times * moved)
            sums[key] = [old + new for old, new in zip(entry, more, strict=True)]
            bounds[key][row.bound_by] += part_ps
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return tuple(
        OpTime(
            *key, count, seconds(duration), flops, moved,
            max(bounds[key], key=lambda bound: (bounds[key][bound], bound)),
        )
        for key, (count, duration, flops, moved) in ordered
        if count
    )  # fmt: skip


def bound_times(
    rows: Sequence[OpRow], counts: Sequence[int], slowed: float
) -> dict[str, dict[str, float]]:
    """Compute the seconds of ops by title and by what bounds them; arguments as for op_times."""
    sums = defaultdict[str, Counter[str]](Counter)
    for row, count in zip(rows, counts, strict=True):
        if row.stream == COMPUTE and row.op.kind != "wait":
            share = slowed if row.op.kind == SLOWDOWN else 1
            sums[row.op.title][row.bound_by] += round(row.duration_ps * share * count)
    return {
        title: {bound: seconds(time_ps) for bound, time_ps in bounds.items()}
        for title, bounds in sums.items()
    }


def op_kinds(names: ModuleNames, ops: Iterable[tuple[OpRow, str]]) -> list[RecordKind]:
    """Return the records of ops and enclosing calls for traces.

    A function that several modules call is shown as the one that calls it most.
    """
    known: dict[int, dict[str, object]] = {}
    kinds = []
    for row, scope in ops:
        if id(row) not in known:
            module, phase, _ = max(names.of(row), key=lambda part: part[2])
            named = "" if module == HOST_MODULE else module
            known[id(row)] = _event_args(row) | {"module": named, "pass": phase}
        args = known[id(row)] | {"scope": scope}
        kinds.append(RecordKind(row.op.title, STREAMS[row.stream], args))
    return kinds


def _event_args(row: OpRow) -> dict[str, object]:
    """Return the arguments of an op for events and traces: see :class:`.records.Event`."""
    op = row.op
    args: dict[str, object] = {"op": op.op, "binding": op.name, "bound_by": row.bound_by}
    if op.kind in ("wait", SLOWDOWN):
        return args
    if op.kind == "compute":
        args |= {"flops": op.flops, "bytes": op.bytes_read + op.bytes_written}
        args |= {"class": op.kernel_class, "dtype": op.dtype}
        if not op.modelled:
            args["unmodelled"] = op.reason
        return args
    args |= {"payload_bytes": op.payload_bytes, "wire_bytes": row.wire_bytes}
    if op.kind == "collective":
        args["group_size"] = op.group_size
    return args
