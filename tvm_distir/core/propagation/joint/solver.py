# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Solves all axes of a mesh at once: summaries bottom-up, a minimisation per function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_distir.core.propagation.decision import Instance, Signature
from tvm_distir.core.propagation.instances import Instances
from tvm_distir.core.propagation.reach import ReachableAxes
from tvm_distir.core.propagation.solve.alternatives import OpStrategy
from tvm_distir.core.propagation.solve.exact import minimise
from tvm_distir.core.propagation.solve.tables import PriceTables
from tvm_distir.core.solver.problem import Problem

from .builder import JointBuilder
from .states import JointProblem, JointSummary, TooManyStates
from .tables import JointTables

TABLE_LIMIT = 1 << 22
"""Limit on table entries; see :func:`~tvm_distir.core.propagation.solve.exact.minimise`."""

NARROW = 1 << 20
"""Entries of a table that elimination joins at once: most such are those of layers that are equal,
which are joined once."""

ROUNDS = 150
"""Rounds of bounds for what stays wider; then the best sharding assignment known is the answer."""

SUMMARY_LIMIT = 1 << 10
"""Limit on the entries of a table of a summary; above it a variable is kept."""


class JointSolver:
    """Assigns labels to instances along all axes of a mesh.

    Parameters
    ----------
    reach : mapping of str to ReachableAxes
        Per graph.
    prices : PriceTables
    mesh_axes : sequence of int
        Numbers of the axes.
    instances : Instances
    forced : mapping of str to Signature
        What all calls of a graph must share.
    """

    def __init__(
        self,
        reach: Mapping[str, ReachableAxes],
        prices: PriceTables,
        mesh_axes: Sequence[int],
        instances: Instances,
        forced: Mapping[str, Signature],
    ) -> None:
        self.reach, self.prices, self.instances, self.forced = reach, prices, instances, forced
        self.mesh_axes = tuple(mesh_axes)
        self.tables = JointTables.of(prices, mesh_axes)
        self._summaries: dict[int, JointSummary] = {}
        self._specialised: dict[tuple[int, tuple[int, ...]], Instance] = {}

    def solve(self, inst: Instance) -> tuple[Instance, int, int] | None:
        """Return the instance labelled along all axes, its cost, and the gap to a lower bound.

        None where that is too wide, or nothing is allowed.

        Parameters
        ----------
        inst : Instance
            With all axes of the mesh open.
        """
        try:
            model = self._problem(inst)
        except TooManyStates:
            return None
        tables, problem = self.prices.tables, Problem(model.domains, model.factors)
        solution = minimise(
            tables,
            problem,
            TABLE_LIMIT,
            inst.graph.name,
            narrow=NARROW,
            rounds=ROUNDS,
            program=False,
        )
        total, forbidden = tables.evaluate(problem, solution.values)
        if not (model.feasible and solution.feasible) or forbidden:
            return None
        return self._decode(inst, model, solution.values), model.constant + total, solution.gap

    def _problem(self, inst: Instance) -> JointProblem:
        g = inst.graph
        return JointBuilder(
            self.tables,
            g,
            self.reach[g.key],
            lambda k: self._summary(inst.kids[k]),
            self.forced.get(g.key),
        ).run()

    def _summary(self, inst: Instance) -> JointSummary:
        summary = self._summaries.get(inst.number)
        if summary is not None:
            return summary
        summary = self._summaries[inst.number] = JointSummary.of(
            self._problem(inst),
            inst.graph,
            self.prices.tables,
            SUMMARY_LIMIT,
            self.tables.forms.turned,
        )
        return summary

    def _decode(self, inst: Instance, model: JointProblem, values: Sequence[int]) -> Instance:
        g, kids = inst.graph, {}
        chosen: list[tuple[OpStrategy, ...]] = []
        for k, (states, v) in enumerate(model.ends):
            if k not in model.spliced:
                chosen.append(states.items[values[v] if v >= 0 else 0])
                continue
            spliced = model.spliced[k]
            variables = spliced.variables
            kids[k] = self._specialise(
                inst.kids[k], tuple(values[variables.start : variables.stop])
            )
            sides = [
                [states.items[values[v] if v >= 0 else 0] for states, v in ends]
                for ends in (spliced.params, spliced.rets)
            ]
            chosen.append(
                tuple(
                    [
                        OpStrategy(
                            tuple([state[i].needs[0] for state in sides[0]]),
                            tuple([state[i].gives[0] for state in sides[1]]),
                            None,
                        )
                        for i in range(len(self.mesh_axes))
                    ]
                )
            )
        columns = {a: tuple([x[i] for x in chosen]) for i, a in enumerate(self.mesh_axes)}
        choice = dict(sorted({**inst.choice, **columns}.items()))
        return self.instances.of(g, choice, kids, inst.columns)

    def _specialise(self, inst: Instance, picked: tuple[int, ...]) -> Instance:
        """Return an instance per distinct assignment of a summary's kept variables."""
        key = (inst.number, picked)
        if key not in self._specialised:
            summary = self._summaries[inst.number]
            values = summary.values(self.prices.tables, picked)
            self._specialised[key] = self._decode(inst, summary.model, values)
        return self._specialised[key]


__all__ = ["JointSolver"]
