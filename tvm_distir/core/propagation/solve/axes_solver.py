# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Assigns labels along some axes of a mesh: functions inner to outer, then chosen labels inwards.

A function is a problem with its calls replaced by their summaries: the minimum cost inside for
every combination of labels at the boundary. Once the caller has chosen, each call gets the
requested specialisation of the callee.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_distir.core.propagation.decision import Instance, Signature
from tvm_distir.core.propagation.instances import Instances, called
from tvm_distir.core.solver.problem import Problem
from tvm_distir.support import Steps, memoized_steps, unrolled

from .builder import ProblemBuilder
from .byte_costs import ByteCosts
from .exact import NARROW, WarmStarts, minimise
from .problem import LabellingProblem, Summary
from .strategies import NodeStrategy, TooManyStrategies
from .tables import CostTables

TABLE_LIMIT = 1 << 22
"""Limit on the entries of a table; a problem that stays wider goes to the integer solver."""


@dataclass(frozen=True)
class SolverLimits:
    """Limits of a solution.

    Attributes
    ----------
    summary : int
        Limit on the entries of a table of a summary; above it a variable is kept. Small ones keep
        the caller's problem narrow: a function with many operands, as the backward pass of a
        layer, else joins them all in its tables.
    narrow, rounds, program
        The limits, as for :func:`.exact.minimise`.
    """

    summary: int = 1 << 6
    narrow: int = NARROW
    rounds: int | None = None
    program: bool = True


AXIS_LIMITS = SolverLimits()
"""The limits along a single axis."""

MESH_LIMITS = SolverLimits(summary=1 << 10, narrow=1 << 20, rounds=150, program=False)
"""The limits along all axes of a mesh: most wide tables are those of equal layers, which are joined
once, and where bounds do not close the best known assignment is the answer."""


class AxesSolver:
    """Assigns labels to instances along axes of a mesh.

    Parameters
    ----------
    cost_tables : CostTables
    axes : sequence of int
        Numbers of the axes.
    instances : Instances
    limits : SolverLimits
    forced : mapping of str to Signature
        The signature that all calls of a graph must share.
    starts : WarmStarts, optional
        The sharding assignments of the same module at other costs, to start from.
    """

    def __init__(
        self,
        cost_tables: CostTables,
        axes: Sequence[int],
        instances: Instances,
        limits: SolverLimits,
        forced: Mapping[str, Signature],
        starts: WarmStarts | None = None,
    ) -> None:
        self.tables, self.instances, self.forced = cost_tables.tables, instances, forced
        self.limits, self.starts = limits, starts
        self.costs = ByteCosts.of(cost_tables, tuple(axes))
        self._summaries: dict[int, Summary] = {}
        # By what is picked of the kept variables of a summary.
        self._called: dict[tuple[int, tuple[int, ...]], NodeStrategy] = {}

    def solve(self, inst: Instance) -> tuple[Instance, int, int] | None:
        """Return the instance with labels along the axes, its cost, and the gap to a lower bound.

        None where that is too wide, or nothing is allowed.

        Parameters
        ----------
        inst : Instance
            The instance, with the axes open.
        """
        try:
            model = self.problem(inst)
        except TooManyStrategies:
            return None
        tables, limits, problem = self.tables, self.limits, Problem(model.domains, model.factors)
        solution = minimise(
            tables, problem, TABLE_LIMIT, inst.graph.name, self.starts,
            narrow=limits.narrow, rounds=limits.rounds, program=limits.program,
        )  # fmt: skip
        total, forbidden = tables.evaluate(problem, solution.values)
        if not (model.feasible and solution.feasible) or forbidden:
            return None
        labelled = unrolled(self._decode(inst, model, solution.values))
        return labelled, model.constant + total, solution.gap

    def problem(self, inst: Instance) -> LabellingProblem:
        """Return the sharding problem of an instance."""
        return unrolled(self._problem(inst))

    def _problem(self, inst: Instance) -> Steps[LabellingProblem]:
        for kid in inst.kids.values():
            if kid.number not in self._summaries:
                yield self._summarise(kid)
        key, sizes = inst.graph.key, self.instances.sizes(inst, self.costs.numbers)
        return ProblemBuilder(
            self.costs, inst, self.instances.reach[key], sizes,
            lambda call: self._summaries[inst.kids[call].number], self.forced.get(key),
        ).run()  # fmt: skip

    def _summarise(self, inst: Instance) -> Steps[None]:
        model = yield from self._problem(inst)
        self._summaries[inst.number] = Summary.of(
            model, inst.graph, self.tables, self.limits.summary, self.costs.strategies.turned
        )

    def _decode(
        self, inst: Instance, model: LabellingProblem, values: Sequence[int]
    ) -> Steps[Instance]:
        chosen = [x.items[values[u] if u >= 0 else 0] for x, u in model.ends]
        kids = {}
        for k, spliced in model.spliced.items():
            kid, variables = inst.kids[k], spliced.variables
            picked = tuple(values[variables.start : variables.stop])
            kids[k] = yield self._specialise(kid, picked)
            if (kid.number, picked) not in self._called:
                labels = [called(kids[k], a) for a in self.costs.numbers]
                self._called[kid.number, picked] = tuple(labels)
            chosen[k] = self._called[kid.number, picked]
        columns = zip(*chosen) if chosen else itertools.repeat(())
        choice = dict(sorted({**inst.choice, **dict(zip(self.costs.numbers, columns))}.items()))
        return self.instances.of(inst.graph, choice, kids, inst.columns)

    @memoized_steps
    def _specialise(self, inst: Instance, picked: tuple[int, ...]) -> Steps[Instance]:
        """Return an instance per distinct assignment of a summary's kept variables."""
        summary = self._summaries[inst.number]
        values = summary.values(self.tables, picked)
        return (yield from self._decode(inst, summary.model, values))
