# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Solves sharding problems as integer programs with HiGHS.

A variable gets a column per state, a table a column per cell; the cells of a state add up to it.
The linear relaxation of this is usually tight already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Problem

MOST_NODES = 2000
"""The maximum number of nodes of the search tree: a bound on the work that is the same on every
machine."""

OPTIONS: dict[str, bool | int | float | str] = {
    "output_flag": False,
    "log_to_console": False,
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 0.0,
    "mip_max_nodes": MOST_NODES,
}

LARGEST = 1e7
"""Costs are scaled so that none exceeds this: the solver's tolerances are absolute."""


@dataclass(frozen=True)
class Optimum:
    """Best known values, and a lower bound of all costs."""

    values: list[int]
    bound: int


class _QuietSolver(highspy.Highs):
    """HiGHS without output: its constructor would print before any option can be set.

    The banner is logged when callbacks are set, to file descriptor 1, where results go.
    """

    def enableCallbacks(self) -> None:
        """Set the callbacks, without output."""
        for option in ("output_flag", "log_to_console"):
            self.setOptionValue(option, False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


@dataclass
class _Program:
    """Integer program: columns, and rows as they are added."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def add_row(self, ones: Sequence[int], right: float, minus: int | None = None) -> None:
        """Require that the columns ``ones`` less the column ``minus`` equal ``right``."""
        self.starts.append(len(self.columns))
        self.columns += ones
        self.factors += [1.0] * len(ones)
        if minus is not None:
            self.columns.append(minus)
            self.factors.append(-1.0)
        self.right.append(right)

    def solve(self, integral: int, known: Sequence[int] | None) -> tuple[list[float] | None, float]:
        """Return values of the columns, of which the first ``integral`` are integers, and a bound.

        ``known``: columns that are 1 in a solution to begin with.
        """
        solver: Any = _QuietSolver()  # type: ignore[no-untyped-call]
        model = highspy.HighsLp()
        for name, value in OPTIONS.items():
            solver.setOptionValue(name, value)
        count = len(self.costs)
        scale = max(self.costs, default=0.0) / LARGEST or 1.0
        model.num_col_, model.num_row_ = count, len(self.right)
        model.col_cost_ = np.array(self.costs) / scale
        model.col_lower_, model.col_upper_ = np.zeros(count), np.array(self.upper)
        model.row_lower_ = model.row_upper_ = np.array(self.right)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array([*self.starts, len(self.columns)], dtype=np.int32)
        model.a_matrix_.index_ = np.array(self.columns, dtype=np.int32)
        model.a_matrix_.value_ = np.array(self.factors)
        kinds = highspy.HighsVarType
        model.integrality_ = [kinds.kInteger if i < integral else kinds.kContinuous
                              for i in range(count)]  # fmt: skip
        solver.passModel(model)
        if known is not None:
            start = highspy.HighsSolution()
            chosen = np.zeros(count)
            chosen[list(known)] = 1.0
            start.col_value = list(chosen)
            solver.setSolution(start)
        solver.run()
        info = solver.getInfo()
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = list(solver.getSolution().col_value) if feasible else None
        return values, max(0.0, info.mip_dual_bound * scale)


def integer_optimum(
    tables: Tables, problem: Problem, known: Sequence[int] | None = None
) -> Optimum | None:
    """Return the optimum of a problem, as near as the solver's limits on work let it come.

    Parameters
    ----------
    tables : Tables
    problem : Problem
        A variable without a factor gets its first state.
    known : sequence of int, optional
        Values to begin with, which no table forbids.

    Returns
    -------
    Optimum or None
        None when the solver finds no values.
    """
    program, first, ones = _Program(), dict[int, int](), list[int]()
    for v in sorted({v for scope in problem.factors for v in scope}):
        first[v] = len(program.costs)
        if known is not None:
            ones.append(first[v] + known[v])
        size = problem.domains[v]
        program.add_row(range(first[v], first[v] + size), 1.0)
        program.costs += [0.0] * size
        program.upper += [1.0] * size
    integral = len(program.costs)
    for scope, number in sorted(problem.factors.items()):
        array = tables.array(number)
        cells = len(program.costs) + np.arange(array.size).reshape(array.shape)
        if known is not None:
            ones.append(int(cells[tuple(known[v] for v in scope)]))
        for axis, v in enumerate(scope):
            for s in range(problem.domains[v]):
                columns = np.take(cells, s, axis=axis).ravel().tolist()
                program.add_row(columns, 0.0, minus=first[v] + s)
        flat = array.ravel().tolist()
        program.costs += [float(x) if x < INFINITE else 0.0 for x in flat]
        program.upper += [float(x < INFINITE) for x in flat]
    solution, bound = program.solve(integral, None if known is None else ones)
    if solution is None:
        return None
    values = [0] * len(problem.domains)
    for v, column in first.items():
        values[v] = int(np.argmax(solution[column : column + problem.domains[v]]))
    return Optimum(values, int(bound) if np.isfinite(bound) else 0)
