# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The joint problem as an integer program, solved by HiGHS; and cases to solve."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import highspy
import numpy as np

from tests.core.propagation.joint_problem import Joint, TooLarge, Value
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.assignment import Propagator
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.solver.problem import INFINITE
from tvm_distir.support.errors.tree import DistIRError

AnyGap = TypeVar("AnyGap")

TIME_LIMIT_S = 20.0
UNIT = 1e-6
MESHES = ((2, 2), (2, 4), (4, 2), (2, 3), (3, 2), (4, 4), (2, 2, 2))
MOST_BINDINGS = 14


@dataclass(frozen=True)
class Gap:
    """What the decision of propagation costs, and what the best joint assignment does.

    Attributes
    ----------
    seed : int
    decided, best : int
        In the units of ``Costs``; ``best`` is the better of the program's solution and ours.
    proven : bool
        The solver proved ``best`` optimal (to one part in a billion).
    nodes, axes, calls : int
        Size of the problem.
    """

    seed: int
    decided: int
    best: int
    proven: bool
    nodes: int
    axes: int
    calls: int

    @property
    def relative(self) -> float:
        """How much more the decision costs."""
        return (self.decided - self.best) / self.best if self.best else float(self.decided > 0)


class Program:
    """Columns and rows of the integer program."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.costs: list[float] = []
        self.upper: list[float] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.at: list[int] = []
        for node in joint.nodes:
            self.at.append(len(self.costs))
            for cost in node.costs:
                self.column(cost)
            first, count = self.at[-1], len(node.costs)
            self.rows.append(({first + i: 1.0 for i in range(count)}, 1.0, 1.0))
        self.binaries = len(self.costs)
        for value in joint.values:
            if value.uses:
                for a in range(len(joint.axes)):
                    self.conversions(value, a)

    def column(self, cost: int) -> int:
        """A variable between 0 and 1; 0 where its cost is infinite."""
        self.costs.append(cost * UNIT if cost < INFINITE else 0.0)
        self.upper.append(1.0 if cost < INFINITE else 0.0)
        return len(self.costs) - 1

    def conversions(self, value: Value, a: int) -> None:
        """Sets of forms held along an axis; the set holds every form that is wanted."""
        joint, expected = self.joint, self.joint.wanted(value, a)
        sets = [
            frozenset(s)
            for n in range(1, len(expected) + 1)
            for s in itertools.combinations(expected, n)
        ]
        classes: dict[tuple[int, int], list[int]] = {}
        shown: dict[tuple[int, int], list[int]] = {}
        for i, c in enumerate(joint.nodes[value.node].combinations):
            labels = [x[1][value.result] for x in c]
            key = (labels[a], joint.local_bytes(value.size_bytes, labels, a))
            classes.setdefault(key, []).append(self.at[value.node] + i)
            shown[key] = labels
        holding: dict[frozenset[int], list[int]] = {s: [] for s in sets}
        for key, members in classes.items():
            row = {m: -1.0 for m in members}
            for s in sets:
                column = self.column(joint.conversion(value, shown[key], a, s))
                holding[s].append(column)
                row[column] = 1.0
            self.rows.append((row, 0.0, 0.0))
        for k, places in value.uses:
            combinations = joint.nodes[k].combinations
            for label in expected:
                row = {
                    self.at[k] + i: 1.0
                    for i, c in enumerate(combinations)
                    if any(c[a][0][p] == label for p in places)
                }
                if row:
                    row.update((x, -1.0) for s in sets if label in s for x in holding[s])
                    self.rows.append((row, -np.inf, 0.0))

    def solve(self, limit_s: float) -> tuple[list[int] | None, bool]:
        """The best assignment found, and whether it is proven to be optimal."""
        entries = [sorted(row.items()) for row, _, _ in self.rows]
        kinds = highspy.HighsVarType
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.costs), len(self.rows)
        model.col_cost_ = np.array(self.costs)
        model.col_lower_, model.col_upper_ = np.zeros(len(self.costs)), np.array(self.upper)
        model.row_lower_ = np.array([low for _, low, _ in self.rows])
        model.row_upper_ = np.array([high for _, _, high in self.rows])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.cumsum([0, *map(len, entries)]).astype(np.int32)
        model.a_matrix_.index_ = np.array([c for row in entries for c, _ in row], dtype=np.int32)
        model.a_matrix_.value_ = np.array([x for row in entries for _, x in row])
        model.integrality_ = [
            kinds.kInteger if i < self.binaries else kinds.kContinuous
            for i in range(len(self.costs))
        ]
        solver = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("time_limit", limit_s),
            ("mip_rel_gap", 1e-9),
        ):
            solver.setOptionValue(name, value)
        solver.passModel(model)
        solver.run()
        status = solver.getInfo().primal_solution_status
        if status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None, False
        result = solver.getSolution().col_value
        picked = []
        for node, first in zip(self.joint.nodes, self.at):
            picked.append(int(np.argmax(result[first : first + len(node.costs)])))
        return picked, solver.getModelStatus() == highspy.HighsModelStatus.kOptimal


def gap_of(mod: Any, seed: int = 0, limit_s: float = TIME_LIMIT_S) -> Gap:
    """Solve an annotated one-mesh module both ways.

    Raises
    ------
    TooLarge
        The joint problem is too large to be solved.
    """
    solver = Propagator(mod, Costs())
    decision = solver.run()
    joint = Joint(solver, decision)
    ours = joint.decided()
    if ours is None:
        raise ValueError("the decision is not among the joint assignments")
    decided = joint.cost(ours)
    best, proven = Program(joint).solve(limit_s)
    least = decided if best is None else min(decided, joint.cost(best))
    calls = sum(len(g.calls) for g in solver.module.graphs.values())
    return Gap(seed, decided, least, proven, len(joint.nodes), len(joint.axes), calls)


def module_of(seed: int) -> Any | None:
    """A small random annotated module on a mesh of two or three axes; None for a large one."""
    from tests.campaign import campaign_modules, campaign_plans

    mod = campaign_modules.sample(seed).mod
    bindings = sum(len(b.bindings) for _, f in relax_functions(mod) for b in f.body.blocks)
    if bindings > MOST_BINDINGS:
        return None
    plan = campaign_plans.plan_dict(seed, mod, MESHES, second_share=0)
    return AnnotateSharding(Plan.from_dict(plan))(mod)


def gaps(
    solve: Callable[[Any, int, float], AnyGap],
    first: int,
    count: int,
    limit_s: float = TIME_LIMIT_S,
) -> Iterator[AnyGap]:
    """``count`` gaps of the seeds from ``first`` on that give small, feasible problems.

    ``solve`` is :func:`gap_of`, or another function of a module, its seed and a limit in seconds.
    """
    seed, result = first, 0
    while result < count:
        mod = module_of(seed)
        if mod is not None:
            try:
                gap = solve(mod, seed, limit_s)
            except (TooLarge, DistIRError):  # too large to solve, or a refused plan
                seed += 1
                continue
            result += 1
            yield gap
        seed += 1
