# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the steady state of a pipeline rank, of which a few periods suffice.

Steps that come again for later micro-batches, with all the steps of the micro-batches under way,
leave the same memory behind each time. So periods in the middle need not be walked.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core.plan import RankStep, Schedule

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SteadyState:
    """Events of a rank without the repeated periods.

    Attributes
    ----------
    steps : list of RankStep
        The steps; those behind ``at`` are of micro-batches that are ``times * stride`` before their
        real numbers.
    at, period, times, stride : int
        The repeated periods that are left out: ``times`` periods of ``period`` steps each at step
        ``at``, equal to those before but for ``stride`` micro-batches each.
    """

    steps: list[RankStep]
    at: int
    period: int
    times: int
    stride: int

    def repeated(self, before: Sequence[int], events: Ints) -> Ints:
        """Return events with those of the last period before ``at`` again for each left out.

        Parameters
        ----------
        before : sequence of int
            The number of events before each step.
        events : int64 array (events,)
        """
        begin, end = before[self.at - self.period], before[self.at]
        return np.concatenate([events[:end], *[events[begin:end]] * self.times, events[end:]])

    def later(self, before: Sequence[int], at: int) -> int:
        """Return the micro-batch offset of an event of the full step, as :meth:`repeated`."""
        begin, end = before[self.at - self.period], before[self.at]
        return min(max(at - begin, 0) // (end - begin), self.times) * self.stride


def cut(steps: Sequence[RankStep], schedule: Schedule) -> SteadyState | None:
    """Cut repeated periods; return None where there are none or memory depends on more."""
    if schedule.stash or schedule.offload:
        return None
    names = [(s.kind, s.unit.phase, s.unit.chunk, s.stage, s.peer) for s in steps]
    numbers: dict[Any, int] = {}
    kind = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
    micro = np.array([s.unit.micro for s in steps], np.int64)
    count = schedule.micro_batches
    first, last = np.full(count, len(steps)), np.full(count, -1)
    np.minimum.at(first, micro, np.arange(len(steps)))
    np.maximum.at(last, micro, np.arange(len(steps)))
    for stride in dict.fromkeys((1, schedule.stages)):
        middle = len(steps) // 2
        repeated = np.flatnonzero((kind == kind[middle]) & (micro == micro[middle] + stride))
        period = int(repeated[0]) - middle if repeated.size else 0
        if period <= 0:
            continue
        same = (kind[period:] == kind[:-period]) & (micro[period:] == micro[:-period] + stride)
        breaks = np.flatnonzero(~same)
        low = int(breaks[breaks < middle].max(initial=-1)) + 1
        high = int(breaks[breaks > middle].min(initial=same.size)) + period
        placed = _locate(first, last, low, high, period)
        if placed is not None:
            at, times = placed
            freed = times * stride
            remaining = [
                s._replace(unit=s.unit._replace(micro=s.unit.micro - freed))
                for s in steps[at + times * period :]
            ]
            return SteadyState([*steps[:at], *remaining], at, period, times, stride)
    return None


def steady(before: Sequence[int], shorter: SteadyState, facts: Ints, left: Ints) -> bool:
    """Return whether the periods before and after those left out are equal, and leave nothing.

    Parameters
    ----------
    before : sequence of int
        The number of events before each step.
    shorter : SteadyState
    facts : int64 array (events, ...)
        The facts on which memory depends.
    left : int64 array (events, sizes)
        The bytes of each size that each event leaves allocated.
    """
    at, period = shorter.at, shorter.period
    marks = [before[at + n * period] for n in (-2, -1, 0, 1)]
    parts = [slice(*ends) for ends in itertools.pairwise(marks)]
    equal = all(np.array_equal(facts[part], facts[parts[0]]) for part in parts)
    return equal and not left[parts[0]].sum(axis=0).any()


def _locate(first: Any, last: Any, low: int, high: int, period: int) -> tuple[int, int] | None:
    """Return where, and how many, periods can be left out with steady micro-batches."""

    def steady(at: int) -> bool:
        """Return whether live instances begin and end two periods within low and high."""
        live = (first < at) & (last >= at)
        inside = (first[live] >= low + 2 * period) & (last[live] < high - 2 * period)
        return bool(inside.all())

    positions = range(low + 3 * period, high - 3 * period + 1, period)
    start = next((at for at in positions if steady(at)), None)
    stop = next((at for at in reversed(positions) if steady(at)), None)
    if start is None or stop is None or stop <= start:
        return None
    return start, (stop - start) // period
