# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents the sharding problem of a function as variables and cost tables.

A call with several alternatives is a variable, its work a table over it. A value with a single
consumer gives a table over producer and consumer: the cheapest conversion. A value with several
consumers gets a variable, the set of labels in which it is stored, so that a collective
serves all of them. A call of a private function splices that function's summary.

The domain of a variable is the strategies of a node along the axes of the problem: all axes of a
mesh at once, or a single axis while the others are decided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tvm_distir.core.propagation.graph.graph import Graph
from tvm_distir.core.solver.cost_tables import Elimination, Tables
from tvm_distir.core.solver.problem import INFINITE, Problem, Scope

from .strategies import Strategies
from .tables import Interned, TableStore

End: TypeAlias = tuple[Strategies, int]
"""Strategies of a node and the variable that picks among them (-1: a single strategy)."""


@dataclass
class Spliced:
    """Summary of a function in the problem of its caller: variables and ends."""

    variables: range
    params: tuple[End, ...]
    rets: tuple[End, ...]


@dataclass
class LabellingProblem:
    """Variables (``domains``), tables (``factors``), constant, and the end of every node.

    The calls of functions have theirs in ``spliced``.
    """

    domains: list[int] = field(default_factory=list)
    factors: dict[Scope, int] = field(default_factory=dict)
    constant: int = 0
    feasible: bool = True
    ends: list[End] = field(default_factory=list)
    spliced: dict[int, Spliced] = field(default_factory=dict)

    def put(self, store: TableStore, scope: Scope, table: Interned) -> None:
        """Add a table, and the minimum taken out of it, over ascending variables."""
        number, low = table
        self.constant += low
        if scope:
            other = self.factors.get(scope)
            if other is not None:
                number, low = store.add(other, number)
                self.constant += low
            self.factors[scope] = number
        elif store.array(number) >= INFINITE:
            self.feasible = False

    def put_edges(self, store: TableStore, edges: Iterable[tuple[Interned, int, int, int]]) -> None:
        """Add multiples of tables: each a table, its layout as in :meth:`put_edge`, and a count."""
        for table, first, second, times in edges:
            self.put_edge(store, store.times(table, times), first, second)

    def put_edge(self, store: TableStore, table: Interned, first: int, second: int) -> None:
        """Add a table with layout (first, second; -1: none) over sorted variables."""
        if 0 <= first < second:
            self.put(store, (first, second), table)
        elif first < 0:
            self.put(store, (second,) if second >= 0 else (), table)
        elif second < 0:
            self.put(store, (first,), table)
        else:
            self._put_turned(store, table, first, second)

    def _put_turned(self, store: TableStore, table: Interned, first: int, second: int) -> None:
        """Add a table whose second variable is the lower, or the first itself."""
        number, low = table
        if first > second:
            number, more = store.flipped(number)
            self.put(store, (second, first), (number, low + more))
            return
        number, more = store.diagonal(number)
        self.put(store, (first,), (number, low + more))

    def splice(self, store: TableStore, k: int, summary: Summary) -> None:
        """Add the summary of the function that node k calls."""
        first = len(self.domains)
        self.domains += summary.domains
        for scope, table in summary.factors:
            self.put(store, tuple([first + u for u in scope]), (table, 0))
        self.constant += summary.constant
        self.feasible = self.feasible and summary.feasible
        self.spliced[k] = Spliced(range(first, len(self.domains)), *summary.ends_from(first))


@dataclass
class Summary:
    """Problem of a function with its inner variables minimised out."""

    model: LabellingProblem
    done: Elimination
    domains: list[int]
    factors: list[tuple[Scope, int]]
    constant: int
    feasible: bool
    params: tuple[End, ...]
    rets: tuple[End, ...]

    @classmethod
    def of(
        cls,
        model: LabellingProblem,
        g: Graph,
        tables: Tables,
        limit: int,
        turned: Callable[[Strategies], Strategies],
    ) -> Summary:
        """Return the summary of a graph's problem.

        Parameters
        ----------
        model : LabellingProblem
        g : Graph
        tables : Tables
        limit : int
            Limit on the entries of a table; above it a variable is kept.
        turned : callable
            Turns the strategies of a producer into those of a consumer, and the reverse: a producer
            inside a function is a consumer outside.
        """
        ends = [model.ends[k] for k in (*g.params, *g.rets)]
        keep = {v for _, v in ends if v >= 0}
        done = tables.eliminate(Problem(model.domains, model.factors), keep, limit)
        at = {v: i for i, v in enumerate(done.kept)}
        outside = [(turned(strategies), at.get(v, -1)) for strategies, v in ends]
        params, rets = tuple(outside[: len(g.params)]), tuple(outside[len(g.params) :])
        domains = [model.domains[v] for v in done.kept]
        factors = sorted((tuple(at[v] for v in scope), t) for scope, t in done.factors.items())
        constant, feasible = model.constant + done.constant, model.feasible and done.feasible
        return cls(model, done, domains, factors, constant, feasible, params, rets)

    @functools.cached_property
    def _settled(self) -> tuple[bool, bool]:
        """Return whether parameters and results have a single strategy each."""
        return all([u < 0 for _, u in self.params]), all([u < 0 for _, u in self.rets])

    def ends_from(self, first: int) -> tuple[tuple[End, ...], tuple[End, ...]]:
        """Return parameters and results in a caller, where the variables begin with ``first``."""
        params, rets = (
            ends if settled else tuple([(x, first + u) if u >= 0 else (x, u) for x, u in ends])
            for ends, settled in zip((self.params, self.rets), self._settled)
        )
        return params, rets

    def values(self, tables: Tables, picked: Sequence[int]) -> list[int]:
        """Return the values of all variables of the problem, from those of the kept variables."""
        values = [0] * len(self.model.domains)
        for v, x in zip(self.done.kept, picked):
            values[v] = x
        return tables.decode(self.done, values)
