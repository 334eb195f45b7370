# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds problem templates whose tables are filled in later, for many sets of costs.

What an axis reaches settles the variables of a problem and which tables stand over them; costs
settle what the tables hold. A :class:`ProblemTemplate` is made once, by the same
:class:`~.solve.Builder` as any problem but with a recorder in place of the tables, which writes
down which ones it is asked for, and filled in for each set of costs: every distinct table once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_distir.core.propagation.decision import Instance
from tvm_distir.core.propagation.instances import LocalSizes
from tvm_distir.core.propagation.reach import ReachableAxes
from tvm_distir.core.solver.problem import INFINITE

from .alternatives import Alternatives
from .builder import Builder
from .cost import Costs
from .problem import AxisProblem, AxisSummary
from .tables import PriceTables

Order = tuple[Any, ...]
"""A table that is wanted: what makes it, and of what."""


def structure(summary: AxisSummary) -> Hashable:
    """Return all of a summary that the structure of its callers' problems depends on."""
    ends = [(alts.number, u) for alts, u in (*summary.params, *summary.rets)]
    scopes = tuple([scope for scope, _ in summary.factors])
    return tuple(summary.domains), scopes, tuple(ends)


class _Unkept(dict[Any, Any]):
    """Mapping that remembers nothing, so that every table is requested as often as it is used."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Discard the item."""


class _Recorder:
    """A source of tables that numbers the requests and makes no table."""

    def __init__(self, prices: PriceTables, ranks: int) -> None:
        self.axes, self.forms = prices.axes, prices.forms
        self.costs, self.ops = replace(Costs(), hold=ranks), _Unkept()
        self.counts: Counter[int] = Counter()
        self.orders: list[Order] = []
        self.looked_at: list[int] = []
        self._prices, self._numbers = prices, dict[Hashable, int]()

    def order(self, key: Hashable, order: Order) -> tuple[int, int]:
        """Return the number of a request, and 0 for the minimum taken out of it."""
        number = self._numbers.setdefault(key, len(self.orders))
        if number == len(self.orders):
            self.orders.append(order)
        self.counts[number] += 1
        return number, 0

    def callee(self, summary: AxisSummary, number: int) -> AxisSummary:
        """Return a summary with numbers in place of its tables, and neutral values elsewhere."""
        keys = [("callee", number, j) for j in range(len(summary.factors))]
        factors = [
            (scope, self.order(key, key)[0])
            for (scope, _), key in zip(summary.factors, keys, strict=True)
        ]
        return replace(summary, factors=factors, constant=0, feasible=True)

    # What a builder asks of a source of tables

    def edge(
        self, producer: Alternatives, result: int, consumer: Alternatives, *rest: Any
    ) -> tuple[int, int]:
        """Record a request of :meth:`.solve.PriceTables.edge`."""
        key = ("edge", producer.number, result, consumer.number, *rest)
        return self.order(key, ("edge", producer, result, consumer, *rest))

    def share(
        self, producer: Alternatives, result: int, consumers: Sequence[Any], *rest: Any
    ) -> tuple[int, tuple[int, int], list[tuple[int, int]]]:
        """Record a request of :meth:`.solve.PriceTables.share`."""
        ends = tuple([(consumer.number, ops) for consumer, ops in consumers])
        key, order = (
            ("share", producer.number, result, ends, *rest),
            (producer, result, consumers, *rest),
        )
        count = self._prices.share(producer, result, tuple(consumers), *rest)[0]
        tables = [self.order((*key, i), ("share", i, *order)) for i in range(len(consumers) + 1)]
        return count, tables[0], tables[1:]

    def work(self, rule: Any, alternatives: Alternatives, *rest: Any) -> tuple[int, int]:
        """Record a request of :meth:`.solve.PriceTables.work`."""
        key = ("work", self.forms.rule_number(rule), alternatives.number, *rest)
        return self.order(key, ("work", rule, alternatives, *rest))

    def flipped(self, number: int) -> tuple[int, int]:
        """Record a request of :meth:`.solve.PriceTables.flipped`."""
        return self.order(("flip", number), ("flip", number))

    def diagonal(self, number: int) -> tuple[int, int]:
        """Record a request of :meth:`.solve.PriceTables.diagonal`."""
        return self.order(("diagonal", number), ("diagonal", number))

    def table(self, rows: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Record bytes stored, times the ranks: what the builder makes of the cost it is given."""
        key = ("hold", *rows[0])
        return self.order(key, key)

    def times(self, table: tuple[int, int], count: int) -> tuple[int, int]:
        """Record a request of :meth:`.solve.PriceTables.times`."""
        return self.order(("times", table[0], count), ("times", table[0], count))

    def add(self, first: int, second: int) -> tuple[int, int]:
        """Record a request of :meth:`~tvm_distir.core.solver.cost_tables.Tables.add`."""
        return self.order(("add", first, second), ("add", first, second))

    def array(self, number: int) -> Any:
        """Return finite entries; whether any is infinite is decided when the template is filled."""
        self.looked_at.append(number)
        return np.zeros(())


@dataclass(frozen=True)
class ProblemTemplate:
    """The problem of an instance along an axis, without the contents of its tables.

    Attributes
    ----------
    model : AxisProblem
        With numbers of ``orders`` in place of tables.
    orders : tuple of Order
    counts : dict of int to int
        How often each is used.
    looked_at : tuple of int
        Those that stand over no variable if their tables do not, and must not be infinite.
    calls : tuple of int
        How often each distinct callee is called.
    ranks : int
        Of the axis.
    """

    model: AxisProblem
    orders: tuple[Order, ...]
    counts: Mapping[int, int]
    looked_at: tuple[int, ...]
    calls: tuple[int, ...]
    ranks: int

    def filled(self, prices: PriceTables, callees: Sequence[AxisSummary]) -> AxisProblem:
        """Return the model that :class:`~.solve.Builder` would make.

        Parameters
        ----------
        prices : PriceTables
            With the costs, and the placements the sketch was made with.
        callees : sequence of Summary
            The distinct ones, of the :func:`structure` the sketch was made with.
        """
        numbers: list[int] = []
        lows: list[int] = []
        constant = sum(n * callee.constant for n, callee in zip(self.calls, callees, strict=True))
        feasible = all(callee.feasible for callee in callees)
        for i, order in enumerate(self.orders):
            if order[0] == "times":  # the minimum of the base table is counted with that
                base, count = order[1:]
                number = prices.times((numbers[base], 0), count)[0]
                low = (count - 1) * lows[base]
            else:
                number, low = self._table(order, numbers, prices, callees)
            numbers.append(number)
            lows.append(low)
            constant += low * self.counts[i]
        for i in self.looked_at:
            array = prices.tables.array(numbers[i])
            feasible = feasible and bool(array.ndim or array < INFINITE)
        factors = {scope: numbers[i] for scope, i in self.model.factors.items()}
        return replace(self.model, factors=factors, constant=constant, feasible=feasible)

    def _table(
        self,
        order: Order,
        numbers: Sequence[int],
        prices: PriceTables,
        callees: Sequence[AxisSummary],
    ) -> tuple[int, int]:
        kind, *given = order
        tables = prices.tables
        if kind == "edge":
            return prices.edge(*given)
        if kind == "share":
            _, first, rest = prices.share(*given[1:])
            return (first, *rest)[given[0]]
        if kind == "work":
            return prices.work(*given)
        if kind == "add":
            return tables.add(numbers[given[0]], numbers[given[1]])
        if kind == "hold":
            costs = prices.costs
            return tables.table([[costs.scaled(costs.hold * n // self.ranks) for n in given]])
        if kind == "callee":
            return callees[given[0]].factors[given[1]][1], 0
        turned = prices.flipped if kind == "flip" else prices.diagonal
        return turned(numbers[given[0]])


def sketched(
    prices: PriceTables,
    inst: Instance,
    a: int,
    reach: ReachableAxes,
    sizes: LocalSizes,
    calls: Mapping[int, int],
    callees: Sequence[AxisSummary],
) -> ProblemTemplate:
    """Make the template of an instance along axis ``a`` of a module on a single mesh.

    Parameters
    ----------
    prices : PriceTables
        Any, with the placements to use.
    inst, a, reach, sizes
        As for :class:`~.solve.Builder`.
    calls : mapping of int to int
        Call node to the number of what it calls.
    callees : sequence of Summary
        The distinct ones.
    """
    recorder = _Recorder(prices, prices.axes[a].size)
    numbered = [recorder.callee(summary, j) for j, summary in enumerate(callees)]
    model = Builder(recorder, inst, a, reach, sizes, lambda k: numbered[calls[k]]).run()
    often = Counter(calls.values())
    return ProblemTemplate(
        model,
        tuple(recorder.orders),
        recorder.counts,
        tuple(recorder.looked_at),
        tuple(often[j] for j in range(len(callees))),
        prices.axes[a].size,
    )


class SketchedProblems:
    """Builds problems from templates, which are made on first use.

    Parameters
    ----------
    prices : PriceTables
        Of a single axis.
    reach : mapping of str to ReachableAxes
        Per graph.
    key : hashable
        What the reach depends on.
    sketches : dict
        Those made so far; others are put there.
    """

    def __init__(
        self,
        prices: PriceTables,
        reach: Mapping[str, ReachableAxes],
        key: Hashable,
        sketches: dict[Hashable, ProblemTemplate],
    ) -> None:
        self.prices, self.reach, self.key, self.sketches = prices, reach, key, sketches

    def __call__(
        self,
        inst: Instance,
        a: int,
        sizes: Callable[[Instance, int], LocalSizes],
        summary_of: Callable[[Instance], AxisSummary],
        /,
    ) -> AxisProblem:
        """Return the problem; see :class:`.axis_solver.ProblemMaker`."""
        distinct = {kid.number: kid for kid in inst.kids.values()}
        at = {number: j for j, number in enumerate(distinct)}
        callees = [summary_of(kid) for kid in distinct.values()]
        key = (self.key, inst.graph.key, *map(structure, callees))
        if key not in self.sketches:
            calls = {k: at[kid.number] for k, kid in inst.kids.items()}
            self.sketches[key] = sketched(
                self.prices, inst, a, self.reach[inst.graph.key], sizes(inst, a), calls, callees
            )
        return self.sketches[key].filled(self.prices, callees)


__all__ = ["ProblemTemplate", "SketchedProblems"]
