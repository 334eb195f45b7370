# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prepare measured rows for evaluation with any constants of a system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import System
from tvm_distir.performance import PipelineProgram, grouped
from tvm_distir.planning.workers import Lookahead, Workers

from .cost_terms import CostTerms, KernelBatch, KernelTerm, StepCostTerms
from .critical_path import CostFunction, longest_path
from .programs import program_of
from .rows import AnyRow, ProductRow, TracedRow
from .step_times import StepSums, with_constants

Floats = npt.NDArray[np.float64]


class StepTimeModel:
    """Model of the times of rows, on a system whose constants change.

    Parameters
    ----------
    rows : sequence of Row, StepRow or ProductRow
    system : System
        The system, for its nodes, its kernel profile, and constants that are not given otherwise.
    workers : Workers, optional
        The workers that make the programs of rows.
    """

    def __init__(
        self, rows: Sequence[AnyRow], system: System, workers: Workers | None = None
    ) -> None:
        self.system, self._rows = system, rows
        workers = workers or Workers()
        lookahead = Lookahead(workers, step_terms, system)
        self._steps = [
            lookahead.get(row, rows[number : number + workers.count])
            for number, row in enumerate(rows, 1)
        ]
        self._ways: list[CostTerms] = []
        self.steps = StepSums([])
        self.walk({})

    def walk(self, values: Mapping[str, float]) -> Floats:
        """Find the critical paths with these constants and return the seconds of each step."""
        system = with_constants(self.system, values)
        self._ways = [
            step if isinstance(step, CostTerms) else longest_path(step, _costs(step, system))[1]
            for step in self._steps
        ]
        self.steps = StepSums(self._ways)
        return self.steps.times_s(system)

    def times_s(self, values: Mapping[str, float]) -> Floats:
        """Return the seconds of each step with these constants along the last critical paths."""
        return self.steps.times_s(with_constants(self.system, values))

    def possible(self) -> list[int]:
        """Numbers of the rows that are not faster than a device can be.

        No arithmetic is above the peak, and no traffic of a product, which reads and writes all of
        its bytes, above the bandwidth.
        """
        floors = self.steps.floors_s(self.system)
        result = []
        for number, (row, floor_s) in enumerate(zip(self._rows, floors.tolist(), strict=True)):
            if isinstance(row, ProductRow):
                floor_s = max(floor_s, row.bytes / self.system.memory_bandwidth_bytes_per_s)
            if row.time_s >= floor_s or isinstance(row, TracedRow):
                result.append(number)
        return result

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all but some of the rows."""
        self._rows = [self._rows[row] for row in rows]
        self._steps = [self._steps[row] for row in rows]
        self._ways = [self._ways[row] for row in rows]
        self.steps = StepSums(self._ways)

    def some(self, rows: Sequence[int]) -> StepSums:
        """Return the ways of some of the steps."""
        return StepSums([self._ways[row] for row in rows])


def _costs(step: StepCostTerms, system: System) -> CostFunction:
    """Return the seconds of the parts of a step."""
    known = {id(parts): parts for parts in step.known()}
    times = StepSums(list(known.values())).times_s(system)
    time_of: dict[int, float] = dict(zip(known, times.tolist(), strict=True))
    return lambda parts: time_of[id(parts)]


def step_terms(system: System, row: AnyRow) -> StepCostTerms | CostTerms:
    """Return the cost terms of a row on a system."""
    if isinstance(row, TracedRow):
        return row.terms
    if isinstance(row, ProductRow):
        kernel = KernelTerm("matmul", row.dtype, row.flops, row.bytes)
        return CostTerms(Counter({KernelBatch(((kernel, 1),), 0): 1}))
    program = grouped(program_of(row), system.kernels)
    staged = program.staged
    if not isinstance(staged, PipelineProgram):
        raise TypeError("the program is not pipelined")
    return StepCostTerms(program, staged, system)
