# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute max-plus maps of functions in NumPy: simple, slow, and equal to the native ones.

Every parameter is a port here, so that a comparison checks the choice of ports as well.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.references.rank_units import checked, run_units, times_of
from tvm_distir.performance.event_loop.function_summaries import (
    AFTER,
    APART,
    COMPUTE_PORT,
    HOLDS,
    HOST_PORT,
    IS_FREE,
    LATEST,
    NEVER,
    STREAM_PORTS,
    SYNC,
    FunctionSummaries,
    FunctionTable,
    Ints,
    representable,
)
from tvm_distir.performance.event_loop.rank_programs import ActionTimes, RankPrograms
from tvm_distir.support import SimulationError


@dataclass(frozen=True)
class _Op:
    stream: int
    flags: int
    duration: int
    issue: int
    callee: int
    ins: list[int]
    outs: list[int]


@dataclass(frozen=True)
class _Function:
    params: int
    values: int
    ops: list[_Op]
    results: list[int]


def _read(table: FunctionTable) -> list[_Function]:
    """Return the functions of a table."""
    ops, ins, outs, results = (
        iter(each) for each in (table.ops, table.ins, table.outs, table.results)
    )

    def take(source: Iterator[int], count: int) -> list[int]:
        return [next(source) for _ in range(count)]

    result = []
    rows = table.functions
    for at in range(0, len(rows), 4):
        local = []
        for _ in range(rows[at + 2]):
            stream, flags, duration, issue, callee, reads, writes = take(ops, 7)
            operands, created = take(ins, reads), take(outs, writes)
            local.append(_Op(stream, flags, duration, issue, callee, operands, created))
        result.append(_Function(rows[at], rows[at + 1], local, take(results, rows[at + 3])))
    return result


def _plus(row: Ints, by: int) -> Ints:
    matches: Ints = np.where(row > NEVER, row + min(by, LATEST + 1), NEVER)
    return checked(matches)


def _retimed(op: _Op, column: int, elapsed: Ints) -> _Op:
    return op if column < 0 else replace(op, duration=int(elapsed[column]))


class ReferenceMaps(FunctionSummaries):
    """See :class:`.function_summaries.FunctionSummaries`."""

    def __init__(self, table: FunctionTable) -> None:
        self._functions = _read(table)
        self._cache: dict[int, tuple[Ints, list[Ints]]] = {}

    def result_sources(self, function: int) -> list[int]:
        """See :class:`.function_summaries.FunctionSummaries`: all results may come whenever."""
        return [IS_FREE] * len(self._functions[function].results)

    def independent_inputs(self, function: int) -> list[bool]:
        """See :class:`.function_summaries.FunctionSummaries`: all parameters matter."""
        return [True] * self._functions[function].params

    def open(self, function: int, classes: Sequence[int]) -> None:
        """See :class:`.function_summaries.FunctionSummaries`: all parameters are ports anyway."""

    def ports(self, function: int) -> list[int]:
        """See :class:`.function_summaries.FunctionSummaries`."""
        return list(range(self._functions[function].params))

    def tasks(self, function: int) -> int:
        """See :class:`.function_summaries.FunctionSummaries`."""
        return sum(
            1 if op.callee < 0 else self.tasks(op.callee) for op in self._functions[function].ops
        )

    def matrix(self, function: int) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        return self._summary(function)[0]

    def _summary(self, function: int) -> tuple[Ints, list[Ints]]:
        """Return the rows of streams and results, and per op those of its starts."""
        if function not in self._cache:
            with representable():
                self._cache[function] = self._summarised(self._functions[function])
        return self._cache[function]

    def _summarised(self, fn: _Function) -> tuple[Ints, list[Ints]]:
        ports = STREAM_PORTS + fn.params
        unit = np.full((ports, ports), NEVER, np.int64)
        np.fill_diagonal(unit, 0)
        streams = list(unit[:STREAM_PORTS])
        value = {-1: np.full(ports, NEVER, np.int64), **dict(enumerate(unit[STREAM_PORTS:]))}
        starts: list[Ints] = []
        for op in fn.ops:
            if op.callee >= 0:
                inner = np.stack([*streams, *(value[k] for k in op.ins)])
                ends = times_of(self.matrix(op.callee), inner)
                streams = list(ends[:STREAM_PORTS])
                value |= {k: end for k, end in zip(op.outs, ends[STREAM_PORTS:]) if k >= 0}
                starts.append(inner)
                continue
            streams[HOST_PORT] = _plus(streams[HOST_PORT], op.issue)
            rows = [streams[HOST_PORT], *(value[k] for k in op.ins)]
            if not op.flags & APART:
                rows.append(streams[op.stream])
            if op.flags & (AFTER | HOLDS):
                rows.append(streams[COMPUTE_PORT])
            start = np.stack(rows).max(axis=0)
            end = _plus(start, op.duration)
            if not op.flags & APART:
                streams[op.stream] = end
            if op.flags & HOLDS:
                streams[COMPUTE_PORT] = end
            if op.flags & SYNC:
                streams[HOST_PORT] = end
            value |= {k: end for k in op.outs if k >= 0}
            starts.append(start[None])
        return np.stack([*streams, *(value[k] for k in fn.results)]), starts

    def expand(self, function: int, times: Ints) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        return np.array([self._starts(function, row) for row in times], np.int64).reshape(
            len(times), self.tasks(function)
        )

    def _starts(self, function: int, times: Ints) -> list[int]:
        matches: list[int] = []
        for op, rows in zip(self._functions[function].ops, self._summary(function)[1]):
            at = times_of(rows, times[:, None])[:, 0]
            matches += at.tolist() if op.callee < 0 else self._starts(op.callee, at)
        return matches

    def spans(self, function: int, times: Ints) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        ops = [(k, op) for k, op in enumerate(self._ops(function)) if op.stream == COMPUTE_PORT]
        result = np.full((len(times), 2), NEVER, np.int64)
        if ops:
            start = self.expand(function, times)
            result[:, 0] = start[:, ops[0][0]]
            result[:, 1] = start[:, ops[-1][0]] + ops[-1][1].duration
        return result

    def run(self, units: RankPrograms) -> ActionTimes:
        """See :class:`.function_summaries.FunctionSummaries`."""
        with representable():
            return run_units(self, units)

    def sweep(self, columns: Ints, duration: Ints, sent: Ints, units: RankPrograms) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        result = np.full(duration.shape[1], -1, np.int64)
        for row in range(result.size):
            column = iter(columns.tolist())
            single = copy.copy(self)
            single._cache = {}
            single._functions = [
                replace(fn, ops=[_retimed(op, next(column), duration[:, row]) for op in fn.ops])
                for fn in self._functions
            ]
            edges = np.stack((units.edges[:, 0], sent[:, row]), axis=1)
            with contextlib.suppress(SimulationError):
                with representable():
                    ran = run_units(single, replace(units, edges=edges))
                if (ran.position == np.diff(units.program_begin)).all():
                    result[row] = ran.finish.max(initial=0)
        return result

    def busy(
        self, runs: Ints, times: Ints, computing: Ints, communicating: Ints
    ) -> tuple[int, int, int]:
        """See :class:`.function_summaries.FunctionSummaries`."""
        changes: list[tuple[int, int, int]] = []
        for kind, pairs in enumerate((computing, communicating)):
            for start, end in pairs.reshape(-1, 2).tolist():
                changes += [(start, kind, 1), (end, kind, -1)]
        at = 0
        for function in runs.tolist():
            ports = STREAM_PORTS + len(self.ports(function))
            starts = self._starts(function, times[at : at + ports])
            at += ports
            for op, start in zip(self._ops(function), starts, strict=True):
                kind = int(op.stream != COMPUTE_PORT)
                changes += [(start, kind, 1), (start + op.duration, kind, -1)]
        open_now, sums, last = [0, 0], [0, 0, 0], 0
        for time, kind, change in sorted(changes):
            elapsed = time - last
            for each in range(2):
                sums[each] += elapsed if open_now[each] else 0
            sums[2] += elapsed if all(open_now) else 0
            open_now[kind] += change
            last = time
        return sums[0], sums[1], sums[2]

    def _ops(self, function: int) -> Iterator[_Op]:
        """Yield all ops in order of issue, those of callees included."""
        for op in self._functions[function].ops:
            if op.callee < 0:
                yield op
            else:
                yield from self._ops(op.callee)
