# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute max-plus maps of functions, by the native code where it is installed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tvm_distir.support import load_library, reference

from .function_summaries import STREAM_PORTS, FunctionSummaries, FunctionTable, Ints, representable
from .rank_programs import RANK_STREAMS, ActionTimes, RankPrograms


def summarize_functions(table: FunctionTable) -> FunctionSummaries:
    """Read the functions of a table.

    Raises
    ------
    DependencyError
        DIST0110 for a native library that cannot be used.
    """
    maps: FunctionSummaries = (reference("simulation") or NativeMaps)(table)
    return maps


@functools.cache
def know_overflows() -> None:
    """Raise an OverflowError for times that do not fit in the native code."""
    import tvm_ffi

    tvm_ffi.register_error("OverflowError", OverflowError)


class NativeMaps:
    """See :class:`.function_summaries.FunctionSummaries`."""

    def __init__(self, table: FunctionTable) -> None:
        functions = load_library()["simulation"](*table.arrays())
        self._origins, self._apart, self._open, self._ports, self._matrix, *others = functions
        self._expand, self._spans, self._run, self._outcome, self._busy, self._sweep = others
        know_overflows()
        self._results = table.functions[3::4]

    def result_sources(self, function: int) -> list[int]:
        """See :class:`.function_summaries.FunctionSummaries`."""
        return list(self._origins(function))

    def independent_inputs(self, function: int) -> list[bool]:
        """See :class:`.function_summaries.FunctionSummaries`."""
        return [bool(flag) for flag in self._apart(function)]

    def open(self, function: int, classes: Sequence[int]) -> None:
        """See :class:`.function_summaries.FunctionSummaries`."""
        self._open(function, np.array(classes, np.int64))

    def ports(self, function: int) -> list[int]:
        """See :class:`.function_summaries.FunctionSummaries`."""
        with representable():
            return list(self._ports(function))[1:]

    def tasks(self, function: int) -> int:
        """See :class:`.function_summaries.FunctionSummaries`."""
        with representable():
            return int(self._ports(function)[0])

    def matrix(self, function: int) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        ports = STREAM_PORTS + len(self.ports(function))
        result = np.empty((STREAM_PORTS + self._results[function]) * ports, np.int64)
        self._matrix(function, result)
        return result.reshape(-1, ports)

    def expand(self, function: int, times: Ints) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        runs, tasks = times.shape[0], self.tasks(function)
        result = np.empty(runs * tasks, np.int64)
        self._expand(function, np.ascontiguousarray(times).ravel(), result)
        return result.reshape(runs, tasks)

    def spans(self, function: int, times: Ints) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        self.ports(function)
        bounds = np.empty(2 * times.shape[0], np.int64)
        self._spans(function, np.ascontiguousarray(times).ravel(), bounds)
        return bounds.reshape(-1, 2)

    def run(self, units: RankPrograms) -> ActionTimes:
        """See :class:`.function_summaries.FunctionSummaries`."""
        with representable():
            sizes = self._run(*units.arrays())
        times, finish, sent, position = (np.empty(size, np.int64) for size in sizes)
        self._outcome(times, finish, sent, position)
        return ActionTimes(
            times, finish.reshape(-1, RANK_STREAMS), sent.reshape(-1, units.micros), position
        )

    def sweep(self, columns: Ints, duration: Ints, sent: Ints, units: RankPrograms) -> Ints:
        """See :class:`.function_summaries.FunctionSummaries`."""
        result = np.empty(duration.shape[1], np.int64)
        tables = (np.ascontiguousarray(table).ravel() for table in (duration, sent))
        self._sweep(columns, *tables, *units.arrays(), result)
        return result

    def busy(
        self, runs: Ints, times: Ints, computing: Ints, communicating: Ints
    ) -> tuple[int, int, int]:
        """See :class:`.function_summaries.FunctionSummaries`."""
        with representable():
            compute, comm, both = self._busy(runs, times, computing, communicating)
        return int(compute), int(comm), int(both)
