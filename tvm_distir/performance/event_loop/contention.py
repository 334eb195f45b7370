# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate units and messages that share links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_distir.support import load_library

from .activities import Activities, ActivityGraphBuilder, Loads
from .function_summaries import FunctionSummaries, Ints, know_overflows, representable
from .rank_programs import ActionTimes, RankPrograms


@dataclass(frozen=True)
class ContendedTimes:
    """The times of units under contention.

    Attributes
    ----------
    ran : ActionTimes
        The times of the actions under contention; times inside a run are those at full speed,
        which :meth:`real` converts.
    ended : int64 array (edges, micros)
        End of each message, -1 where there is none.
    clock_begin : int64 array (runs + 1,)
        Rows of ``clock`` that are of each run.
    clock : int64 array (n, 2)
        Time at full speed, time: at first, where the speed changes, and at the end. Empty of a
        run that is never slowed.
    """

    ran: ActionTimes
    ended: Ints
    clock_begin: Ints
    clock: Ints

    def real(self, run: int, times: Ints) -> Ints:
        """Return the times of a run whose progress at full speed is ``times``."""
        rows = self.clock[self.clock_begin[run] : self.clock_begin[run + 1]]
        if not len(rows):
            return times
        shown, real = rows[:, 0].astype(np.float64), rows[:, 1].astype(np.float64)
        real_times: Ints = np.rint(np.interp(times, shown, real)).astype(np.int64)
        real_times = np.where(times < rows[0, 0], times, real_times)
        return np.where(times > rows[-1, 0], times + (rows[-1, 1] - rows[-1, 0]), real_times)


def run_contended(maps: FunctionSummaries, units: RankPrograms, loads: Loads) -> ContendedTimes:
    """Run units on ranks as early as possible, where messages and units share links.

    Equal to :meth:`.function_summaries.FunctionSummaries.run` where nothing meets. An activity
    begins when all that it waits for is over.

    Parameters
    ----------
    maps : FunctionSummaries
    units : RankPrograms
    loads : Loads

    Raises
    ------
    SimulationError
        DIST0721 for times beyond 2**53 picoseconds.
    """
    woven = ActivityGraphBuilder(maps, units).woven()
    activities = woven.activities
    with representable():
        time, clock = _contend(activities, loads)
    run_of = np.full(activities.kind.size, -1, np.int64)
    run_of[woven.runs] = np.arange(woven.runs.size)
    runs = run_of[clock[:, 0]]
    order = np.argsort(runs, kind="stable")
    counts = np.bincount(runs, minlength=woven.runs.size)
    sent, ended = (np.full(woven.sent.shape, -1, np.int64) for _ in range(2))
    is_sent = woven.sent >= 0
    flow = woven.sent[is_sent]
    ended[is_sent] = time[activities.out_begin[flow]]
    first = activities.in_begin[flow]
    sent[is_sent] = np.maximum(time[activities.ins[first]], time[activities.ins[first + 1]])
    ports = np.diff(activities.in_begin)[woven.runs]
    begin = np.repeat(activities.in_begin[woven.runs] - np.cumsum(ports) + ports, ports)
    times = time[activities.ins[begin + np.arange(ports.sum())]]
    ran = ActionTimes(times, time[woven.finish], sent, woven.position)
    return ContendedTimes(ran, ended, np.concatenate(([0], np.cumsum(counts))), clock[order, 1:])


def _contend(activities: Activities, loads: Loads) -> tuple[Ints, Ints]:
    know_overflows()
    *arrays, beside = vars(loads).values()
    bits = (np.ascontiguousarray(array).ravel().view(np.int64) for array in arrays)
    native = load_library()["contention"]
    sizes, outcome = native(*vars(activities).values(), *bits, float(beside))
    time, clock = (np.empty(size, np.int64) for size in sizes())
    outcome(time, clock)
    return time, clock.reshape(-1, 3)
