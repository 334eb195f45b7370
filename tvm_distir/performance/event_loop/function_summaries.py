# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize functions with fixed op times as max-plus maps, without unrolling.

A device has three streams: compute, communication, and the host that issues both in program
order. Each start, and each end, is the maximum over a few *ports* (the streams, and operands) of
the port's time plus a constant. A call combines the constants of its callee with those of
the caller, so a function is summarized once, however often it is called. The native code is
``passes/simulate``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tvm_distir.support import SimulationError, load_library

from .rank_programs import RANK_STREAMS, ActionTimes, RankPrograms

Ints = npt.NDArray[np.int64]

COMPUTE_PORT, COMM_PORT, HOST_PORT, STREAM_PORTS = range(4)
"""The ports of every function that are streams, and their number."""

NEVER = -(1 << 61)
"""Time of what is there all along, and constant where a start does not depend on a port."""

LATEST = 1 << 60
"""Later times are refused: 13 days, in picoseconds."""

AT_HAND, SETTLED, FREE = range(3)
"""The time at which an operand is available: all along; no later than the compute stream is free;
at any time."""

IS_SETTLED, IS_FREE = -1, -2
"""The source of a result, if it is no parameter: see :meth:`FunctionSummaries.result_sources`."""

AFTER, HOLDS, SYNC, APART = 1, 2, 4, 8
"""Flags of a communication: it waits for the compute ops issued before it; it stops those issued
behind it until it ends (which includes the first); the host issues nothing until it ends (any op
may have this one); it neither waits for its stream nor occupies it."""


@dataclass
class FunctionTable:
    """Functions as lists of integers, callees before their callers.

    Attributes
    ----------
    functions : list of int
        The numbers of parameters, values (the parameters first), ops and results of each function.
    ops : list of int
        The numbers of each op: its stream (``COMPUTE_PORT`` or ``COMM_PORT``; 0 for a call), flags,
        duration, time of the host to issue it, callee (-1: none), number of operands, number of
        results.
    ins, outs, results : list of int
        Values, -1 for what is there all along; what an op makes may be -1 too.
    """

    functions: list[int] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    ins: list[int] = field(default_factory=list)
    outs: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def arrays(self) -> tuple[Ints, ...]:
        """Return the five lists as arrays."""
        lists = (self.functions, self.ops, self.ins, self.outs, self.results)
        return tuple(np.array(values, np.int64) for values in lists)


@contextlib.contextmanager
def representable() -> Iterator[None]:
    """Turn an OverflowError into SimulationError DIST0721."""
    try:
        yield
    except OverflowError as err:
        problem = "the simulated time does not fit in 64-bit picoseconds (13 days)"
        remedy = "Check the numbers of the system and the sizes of the program."
        raise SimulationError("DIST0721", problem, location="schedule", remedy=remedy) from err


@functools.cache
def know_overflows() -> None:
    """Raise an OverflowError for times that do not fit in the native code."""
    import tvm_ffi

    tvm_ffi.register_error("OverflowError", OverflowError)


class FunctionSummaries:
    """Functions of a table, by number. Times are integers, none later than 2**60.

    All methods that run something raise SimulationError DIST0721 for times beyond
    (:func:`representable`); without a native library that can be used, DependencyError DIST0110.
    """

    def __init__(self, table: FunctionTable) -> None:
        functions = load_library()["simulation"](*table.arrays())
        self._origins, self._apart, self._open, self._ports, self._matrix, *others = functions
        self._expand, self._spans, self._run, self._outcome, self._busy, self._sweep = others
        know_overflows()
        self._results = table.functions[3::4]

    def result_sources(self, function: int) -> list[int]:
        """Return, per result, its parameter, :data:`IS_SETTLED` or :data:`IS_FREE`."""
        return list(self._origins(function))

    def independent_inputs(self, function: int) -> list[bool]:
        """Return, per parameter, whether its time matters even if it is settled."""
        return [bool(flag) for flag in self._apart(function)]

    def open(self, function: int, classes: Sequence[int]) -> None:
        """Say when the parameters of a function that is run are there, before the first run."""
        self._open(function, np.array(classes, np.int64))

    def ports(self, function: int) -> list[int]:
        """Return the parameters that are ports, behind the streams."""
        with representable():
            return list(self._ports(function))[1:]

    def tasks(self, function: int) -> int:
        """Number of ops, callees included."""
        with representable():
            return int(self._ports(function)[0])

    def matrix(self, function: int) -> Ints:
        """Return the ends of streams, then of results, per port: (streams + results, ports)."""
        ports = STREAM_PORTS + len(self.ports(function))
        result = np.empty((STREAM_PORTS + self._results[function]) * ports, np.int64)
        self._matrix(function, result)
        return result.reshape(-1, ports)

    def expand(self, function: int, times: Ints) -> Ints:
        """Return the starts of all ops in issue order, (runs, tasks), from (runs, ports) times."""
        runs, tasks = times.shape[0], self.tasks(function)
        result = np.empty(runs * tasks, np.int64)
        self._expand(function, np.ascontiguousarray(times).ravel(), result)
        return result.reshape(runs, tasks)

    def spans(self, function: int, times: Ints) -> Ints:
        """Start of the first and end of the last compute op, (runs, 2); else NEVER."""
        self.ports(function)
        bounds = np.empty(2 * times.shape[0], np.int64)
        self._spans(function, np.ascontiguousarray(times).ravel(), bounds)
        return bounds.reshape(-1, 2)

    def run(self, units: RankPrograms) -> ActionTimes:
        """Run units on ranks as early as possible."""
        with representable():
            sizes = self._run(*units.arrays())
        times, finish, sent, position = (np.empty(size, np.int64) for size in sizes)
        self._outcome(times, finish, sent, position)
        return ActionTimes(
            times, finish.reshape(-1, RANK_STREAMS), sent.reshape(-1, units.micros), position
        )

    def sweep(self, columns: Ints, duration: Ints, sent: Ints, units: RankPrograms) -> Ints:
        """Return the ends of many runs of units, with other durations.

        Parameters
        ----------
        columns : int64 array
            The row of each op of the table in ``duration``; -1 of a call.
        duration : int64 array (durations, rows)
        sent : int64 array (messages, rows)
            Durations of messages.
        units : RankPrograms

        Returns
        -------
        int64 array (rows,)
            -1 where ranks wait for each other, or a time does not fit.
        """
        result = np.empty(duration.shape[1], np.int64)
        tables = (np.ascontiguousarray(table).ravel() for table in (duration, sent))
        self._sweep(columns, *tables, *units.arrays(), result)
        return result

    def busy(
        self, runs: Ints, times: Ints, computing: Ints, communicating: Ints
    ) -> tuple[int, int, int]:
        """Return the time in which a rank computes, communicates, and does both.

        Parameters
        ----------
        runs : int64 array (runs,)
            Functions.
        times : int64 array
            The times of the ports of each run, run by run.
        computing, communicating : int64 arrays (2 n,)
            Further intervals, each its start and end.
        """
        with representable():
            compute, comm, both = self._busy(runs, times, computing, communicating)
        return int(compute), int(comm), int(both)
