# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the times of functions by name, in call order, callees included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm_distir.hardware import PICOSECONDS

from .device_results import FunctionTime
from .lowering import Lowering
from .op_costs import COMPUTE, SLOWDOWN, OpRow


@dataclass(frozen=True)
class ElapsedTimes:
    """All calls of a function within another.

    Attributes
    ----------
    depth : int
        The depth of the first call.
    calls : int
    compute_ps, other_ps : int
    flops : int
    """

    depth: int
    calls: int
    compute_ps: int = 0
    other_ps: int = 0
    flops: int = 0

    def plus(self, other: ElapsedTimes, times: int = 1) -> ElapsedTimes:
        """Add the times of other calls, multiplied."""
        return ElapsedTimes(
            self.depth,
            self.calls + times * other.calls,
            self.compute_ps + times * other.compute_ps,
            self.other_ps + times * other.other_ps,
            self.flops + times * other.flops,
        )


Table = dict[str, ElapsedTimes]


class FunctionTables:
    """Tables of the functions of a lowering; each is made once."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self._cache: dict[int, Table] = {}

    def of(self, function: int) -> Table:
        """Return the table of a single call of a function, itself first."""
        for number in self.lowering.callees_first(function, self._cache):
            fn = self.lowering.functions[number]
            table: Table = {fn.name: ElapsedTimes(0, 1)}
            for step in fn.steps:
                if step.callee >= 0:
                    add_call(table, [fn.name], self._cache[step.callee])
                else:
                    row = self.lowering.rows[step.row]
                    add_op(table, [fn.name], row, row.duration_ps)
            self._cache[number] = table
        return self._cache[function]


def add_op(table: Table, around: list[str], row: OpRow, spent_ps: int) -> None:
    """Add an op to the functions around it; a delay beside a collective is in none."""
    if row.op.kind == SLOWDOWN:
        return
    busy = row.stream == COMPUTE
    own_times = ElapsedTimes(0, 0, spent_ps if busy else 0, 0 if busy else spent_ps, row.op.flops)
    for name in dict.fromkeys(around):
        table[name] = table[name].plus(own_times)


def add_call(
    table: Table, around: list[str], called: Mapping[str, ElapsedTimes], times: int = 1
) -> None:
    """Add calls of a function to those around them, the innermost last."""
    full = replace(next(iter(called.values())), calls=0)
    for name in dict.fromkeys(around):
        table[name] = table[name].plus(full, times)
    for name, elapsed in called.items():
        empty = ElapsedTimes(elapsed.depth + len(around), 0)
        table[name] = table.get(name, empty).plus(elapsed, times)


def listed(table: Table) -> tuple[FunctionTime, ...]:
    """Return a table in seconds."""
    return tuple(
        FunctionTime(
            name, elapsed.depth, elapsed.calls, elapsed.compute_ps / PICOSECONDS,
            elapsed.other_ps / PICOSECONDS, elapsed.flops,
        )
        for name, elapsed in table.items()
    )  # fmt: skip
