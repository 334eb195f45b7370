# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower functions with their costs: each is read once, and calls stay calls.

A function is *open* when something in it meets what other devices do at different times (the end
of a transfer, a collective whose members are simulated apart), directly or in a callee; its
ops are then simulated individually, in every call. All others are *closed*: a max-plus map each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.performance.event_loop.function_summaries import (
    AFTER,
    APART,
    HOLDS,
    SYNC,
    FunctionTable,
    Ints,
)
from tvm_distir.support import reachable

from .device_results import Branch
from .op_costs import FETCH, SLOWDOWN, OpRow


class SimulatedStep(NamedTuple):
    """Step of a function: an op or a call.

    Attributes
    ----------
    row : int
        Index into the table of rows; -1 of a call.
    callee : int
        Function that is called; -1 of an op.
    name : str
        The name of the binding.
    ins, outs : list of int
        The values. A view, a wait or a send adds no value: its result is its operand.
    """

    row: int
    callee: int
    name: str
    ins: list[int]
    outs: list[int]


@dataclass(frozen=True)
class LoweredFunction:
    """A function.

    Attributes
    ----------
    name : str
    params, values : int
        Counts; the parameters come first. Those of a function in an ``If`` end with conditions,
        for which all its ops wait.
    steps : list of SimulatedStep
    results : list of int
        Values.
    number : int
        The number in the table of summarized functions; -1 of an inlined function.
    work_ps : int
        Sum of the times of all ops, callees included.
    tasks : int
        The number of tasks.
    """

    name: str
    params: int
    values: int
    steps: list[SimulatedStep]
    results: list[int]
    number: int
    work_ps: int
    tasks: int


@dataclass
class Lowering:
    """Lowered functions of programs.

    Parameters
    ----------
    blocking : bool
        Whether plain collectives block.
    meets : callable of OpRow to bool
        Whether an op meets what other devices do.

    Attributes
    ----------
    rows : list of OpRow
        The ops that were met, with their costs.
    functions : list of LoweredFunction
        Callees before their callers.
    branches : list of Branch
        The branches that were met, with the sides that run.
    table : FunctionTable
        The summarized functions.
    """

    blocking: bool = False
    meets: Callable[[OpRow], bool] = lambda row: row.op.kind == "transfer"
    rows: list[OpRow] = field(default_factory=list)
    functions: list[LoweredFunction] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    table: FunctionTable = field(default_factory=FunctionTable)

    @functools.cached_property
    def _counts(self) -> dict[int, Ints]:
        return {}

    def counts(self, function: int) -> Ints:
        """Return how often a call runs each row."""
        for number in self.callees_first(function, self._counts):
            steps = self.functions[number].steps
            rows = [step.row for step in steps if step.callee < 0]
            counts = np.bincount(np.array(rows, np.int64), minlength=len(self.rows))
            for step in steps:
                if step.callee >= 0:
                    counts = counts + self._counts[step.callee]
            self._counts[number] = counts
        return self._counts[function]

    def callees_first(self, function: int, known: Container[int]) -> list[int]:
        """Return a function and what it calls, without what is known already."""

        def callees(number: int) -> list[int]:
            numbers = (step.callee for step in self.functions[number].steps)
            return [n for n in numbers if n >= 0 and n not in known]

        return [] if function in known else sorted(reachable([function], callees))

    def durations(self, function: int) -> Ints:
        """Return the durations of all tasks of a call, in order of issue."""
        return self._times[self.task_rows(function)]

    def streams(self, function: int) -> Ints:
        """Return the streams of all tasks of a call."""
        return self._streams[self.task_rows(function)]

    @functools.cached_property
    def in_program(self) -> npt.NDArray[np.bool_]:
        """Return which rows are ops of the program, by row."""
        return np.array([row.op.kind != SLOWDOWN for row in self.rows], bool)

    @functools.cached_property
    def _times(self) -> Ints:
        return np.array([row.duration_ps for row in self.rows], np.int64)

    @functools.cached_property
    def _streams(self) -> Ints:
        return np.array([row.stream for row in self.rows], np.int64)

    @functools.cached_property
    def _task_rows(self) -> dict[int, Ints]:
        return {}

    def task_rows(self, function: int) -> Ints:
        """Return the rows of all tasks of a call, in order of issue."""
        rows = self._task_rows
        for number in self.callees_first(function, rows):
            parts = [
                np.array([step.row], np.int64) if step.callee < 0 else rows[step.callee]
                for step in self.functions[number].steps
            ]
            rows[number] = np.concatenate([np.zeros(0, np.int64), *parts])
        return rows[function]

    def scoped(self, function: int, scope: str) -> Iterator[tuple[OpRow, str]]:
        """Yield all ops of a call in issue order, with the bindings of enclosing calls."""
        stack = [(scope, iter(self.functions[function].steps))]
        while stack:
            around, steps = stack[-1]
            step = next(steps, None)
            if step is None:
                stack.pop()
            elif step.callee < 0:
                yield self.rows[step.row], around
            else:
                stack.append((f"{around}/{step.name}", iter(self.functions[step.callee].steps)))


def flags_of(row: OpRow, blocking: bool) -> int:
    """Return the flags of an op: the streams that it waits for, and that wait for it.

    A collective that is *started* waits for the compute ops issued before it, as a kernel on a
    separate stream that waits for an event; its ``wait`` is on the compute stream. A plain
    one only needs its operands, or, where collectives block, runs between the compute ops before
    it and those behind it. A collective of a separate channel does not queue with others.

    A copy to the host, or back, waits for the compute ops issued before it, and has the copy before
    it among its operands. In a summarized function a store is on the stream of collectives.
    """
    flags = SYNC if row.host_waits else 0
    if row.op.kind == "copy":
        return flags | AFTER | (APART if row.stream == FETCH else 0)
    if row.op.kind != "collective":
        return flags
    if row.op.channel:
        flags |= APART
    if row.op.is_start:
        return flags | AFTER
    return flags | AFTER | HOLDS if blocking else flags
