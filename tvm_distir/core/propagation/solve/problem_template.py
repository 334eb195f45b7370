# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds problem templates whose tables are filled in later, for many sets of costs.

The reachable axes determine the variables of a problem and the scopes of its tables; costs
determine the contents of the tables. A :class:`ProblemTemplate` is made once, by the same
`~.builder.ProblemBuilder` as any problem but with a recorder in place of the tables, which records
the requested tables. It is instantiated for each set of costs: every distinct table once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.decision import Instance
from tvm_distir.core.propagation.instances import LocalSizes
from tvm_distir.core.propagation.reach import ReachableAxes
from tvm_distir.core.solver.problem import INFINITE

from .axes_solver import Problems, SizesOf, SummaryOf
from .builder import ProblemBuilder
from .byte_costs import ByteCosts, HeldLabels, Kept, OpTable, Readers
from .problem import LabellingProblem, Summary
from .strategies import Others, Strategies
from .tables import CostTables, Interned

Order = tuple[Any, ...]
"""A table that is wanted: what makes it, and of what."""


def structure(summary: Summary) -> Hashable:
    """Return all of a summary that the structure of its callers' problems depends on."""
    ends = [(strategies.number, u) for strategies, u in (*summary.params, *summary.rets)]
    scopes = tuple([scope for scope, _ in summary.factors])
    return tuple(summary.domains), scopes, tuple(ends)


class _RecordedTables(CostTables):
    """Tables that number the requests and make no table."""

    def __init__(self, cost_tables: CostTables) -> None:
        super().__init__(cost_tables.costs, cost_tables.axes)
        self.strategies = cost_tables.strategies
        self.counts: Counter[int] = Counter()
        self.orders: list[Order] = []
        self.looked_at: list[int] = []
        self._numbers: dict[Hashable, int] = {}

    def order(self, *order: Any, key: Hashable = None) -> Interned:
        """Return the number of a request, and 0 for the minimum taken out of it."""
        number = self._numbers.setdefault(order if key is None else key, len(self.orders))
        if number == len(self.orders):
            self.orders.append(order)
        self.counts[number] += 1
        return number, 0

    def callee(self, summary: Summary, number: int) -> Summary:
        """Return a summary with numbers in place of its tables, and neutral values elsewhere."""
        factors = [
            (scope, self.order("callee", number, j)[0])
            for j, (scope, _) in enumerate(summary.factors)
        ]
        return replace(summary, factors=factors, constant=0, feasible=True)

    def flipped(self, number: int) -> Interned:
        """Record the request."""
        return self.order("flip", number)

    def diagonal(self, number: int) -> Interned:
        """Record the request."""
        return self.order("diagonal", number)

    def times(self, table: Interned, count: int) -> Interned:
        """Record the request."""
        return self.order("times", table[0], count)

    def add(self, first: int, second: int) -> Interned:
        """Record the request."""
        return self.order("add", first, second)

    def array(self, number: int) -> Any:
        """Return finite entries; whether any is infinite is decided when the template is filled."""
        self.looked_at.append(number)
        return np.zeros(())


class _RecordedCosts(ByteCosts):
    """Costs of which each table is requested from :class:`_RecordedTables`."""

    def __init__(self, costs: ByteCosts) -> None:
        self.recorded = _RecordedTables(costs.cost_tables)
        super().__init__(self.recorded, costs.numbers)

    def op(
        self, rule: Rule, masks: tuple[int, ...], partials: tuple[int, ...], others: Others
    ) -> OpTable:
        """Record the request."""
        strategies = self.strategies.of_rule(rule, masks, partials, others)
        if len(strategies) == 1:
            return strategies, None
        key = ("op", id(rule), masks, partials, others)
        return strategies, self.recorded.order("op", rule, strategies, others, key=key)

    def held(self, strategies: Strategies, size_bytes: int) -> Interned:
        """Record the request."""
        return self.recorded.order("held", strategies, size_bytes)

    def moved(self, strategies: Strategies, size_bytes: int) -> Interned:
        """Record the request."""
        return self.recorded.order("moved", strategies, size_bytes)

    def edge(self, *request: Any) -> Interned:
        """Record the request."""
        return self.recorded.order("edge", *request)

    def share(
        self,
        producer: Strategies,
        result: int,
        readers: Readers,
        size_bytes: int,
        stationary: HeldLabels,
    ) -> list[Kept]:
        """Record the requests."""
        sets, groups = self.stored(readers)
        shares = []
        for i, group in enumerate(groups):
            first, *rest = [
                self.recorded.order(
                    "share", i, j, producer, result, readers, size_bytes, stationary
                )
                for j in range(len(readers) + 1)
            ]
            shares.append((math.prod([len(sets[axis]) for axis in group]), first, rest))
        return shares


@dataclass(frozen=True)
class ProblemTemplate:
    """The problem of an instance along an axis, without the contents of its tables.

    Attributes
    ----------
    model : LabellingProblem
        The problem, with numbers of ``orders`` in place of tables.
    orders : tuple of Order
    counts : dict of int to int
        The number of uses of each table.
    looked_at : tuple of int
        The tables whose scope becomes empty together with theirs, and which must not be infinite.
    calls : tuple of int
        The number of calls of each distinct callee.
    """

    model: LabellingProblem
    orders: tuple[Order, ...]
    counts: Mapping[int, int]
    looked_at: tuple[int, ...]
    calls: tuple[int, ...]

    def filled(self, costs: ByteCosts, callees: Sequence[Summary]) -> LabellingProblem:
        """Return the model that :class:`~.builder.ProblemBuilder` would make.

        Parameters
        ----------
        costs : ByteCosts
            The costs, with the strategies that the template was made with.
        callees : sequence of Summary
            The distinct ones, of the :func:`structure` that the template was made with.
        """
        cost_tables = costs.cost_tables
        numbers: list[int] = []
        lows: list[int] = []
        constant = sum(n * callee.constant for n, callee in zip(self.calls, callees, strict=True))
        feasible = all(callee.feasible for callee in callees)
        for i, order in enumerate(self.orders):
            if order[0] == "times":  # the minimum of the base table is counted with that
                base, count = order[1:]
                number = cost_tables.times((numbers[base], 0), count)[0]
                low = (count - 1) * lows[base]
            else:
                number, low = self._table(order, numbers, costs, callees)
            numbers.append(number)
            lows.append(low)
            constant += low * self.counts[i]
        for i in self.looked_at:
            array = cost_tables.tables.array(numbers[i])
            feasible = feasible and bool(array.ndim or array < INFINITE)
        factors = {scope: numbers[i] for scope, i in self.model.factors.items()}
        return replace(self.model, factors=factors, constant=constant, feasible=feasible)

    def _table(
        self, order: Order, numbers: Sequence[int], costs: ByteCosts, callees: Sequence[Summary]
    ) -> Interned:
        kind, *arguments = order
        cost_tables = costs.cost_tables
        if kind == "edge":
            return costs.edge(*arguments)
        if kind == "share":
            _, first, rest = costs.share(*arguments[2:])[arguments[0]]
            return (first, *rest)[arguments[1]]
        if kind == "op":
            return costs.work(*arguments)
        if kind == "add":
            return cost_tables.add(numbers[arguments[0]], numbers[arguments[1]])
        if kind == "callee":
            return callees[arguments[0]].factors[arguments[1]][1], 0
        if kind in ("flip", "diagonal"):
            turned = cost_tables.flipped if kind == "flip" else cost_tables.diagonal
            return turned(numbers[arguments[0]])
        return (costs.held if kind == "held" else costs.moved)(*arguments)


def template_of(
    costs: ByteCosts,
    inst: Instance,
    reach: ReachableAxes,
    sizes: LocalSizes,
    calls: Mapping[int, int],
    callees: Sequence[Summary],
) -> ProblemTemplate:
    """Make the template of an instance of a module.

    Parameters
    ----------
    costs : ByteCosts
        Costs at any weights, with the strategies to use.
    inst, reach, sizes
        The arguments of :class:`~.builder.ProblemBuilder`.
    calls : mapping of int to int
        Call node to the number of what it calls.
    callees : sequence of Summary
        The distinct ones.
    """
    recorder = _RecordedCosts(costs)
    recorded = recorder.recorded
    numbered = [recorded.callee(summary, j) for j, summary in enumerate(callees)]
    model = ProblemBuilder(recorder, inst, reach, sizes, lambda k: numbered[calls[k]]).run()
    often = Counter(calls.values())
    orders, looked_at = tuple(recorded.orders), tuple(recorded.looked_at)
    count = tuple(often[j] for j in range(len(callees)))
    return ProblemTemplate(model, orders, recorded.counts, looked_at, count)


class SketchedProblems(Problems):
    """Builds problems from templates, which are made on first use.

    Parameters
    ----------
    reach : mapping of str to ReachableAxes
        The reachable axes of each graph.
    key : hashable
        The key of all that the reachable axes depend on.
    sketches : dict
        The templates made so far; further templates are added to it.
    """

    def __init__(
        self,
        reach: Mapping[str, ReachableAxes],
        key: Hashable,
        sketches: dict[Hashable, ProblemTemplate],
    ) -> None:
        super().__init__(reach)
        self.key, self.sketches = key, sketches

    def __call__(
        self, costs: ByteCosts, inst: Instance, sizes: SizesOf, summary_of: SummaryOf
    ) -> LabellingProblem:
        """Return the problem of an instance."""
        distinct = {kid.number: kid for kid in inst.kids.values()}
        at = {number: j for j, number in enumerate(distinct)}
        callees = [summary_of(kid) for kid in distinct.values()]
        key = (self.key, inst.graph.key, *map(structure, callees))
        if key not in self.sketches:
            calls = {k: at[kid.number] for k, kid in inst.kids.items()}
            reach, local = self.reach[inst.graph.key], sizes(inst, costs.numbers)
            self.sketches[key] = template_of(costs, inst, reach, local, calls, callees)
        return self.sketches[key].filled(costs, callees)
