# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shares tables, placements and costs of edges and work between problems of a propagation."""

from __future__ import annotations

import copy
from collections.abc import Sequence, Sized
from typing import TypeAlias

import numpy as np

from tvm_distir.core.ir.placement import R
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.graph.graph import Axis
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Array

from .cost import Conversions, Costs, sent_inside
from .strategies import OpStrategy, Others, StrategyTable

Interned: TypeAlias = tuple[int, int]
"""Number of a table, and the minimum taken out of it."""


class TableStore:
    """Arithmetic on interned tables by their numbers, memoised.

    Parameters
    ----------
    tables : Tables
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.table, self.add, self.array = tables.table, tables.add, tables.array
        self._turned: dict[tuple[int, bool], Interned] = {}
        self._times: dict[tuple[int, int], int] = {}

    def intern(self, array: Array) -> Interned:
        """Return the table of an array; a dim of size 1 is dropped: its node has no variable."""
        return self.tables.intern(array.reshape([n for n in array.shape if n > 1]))

    def times(self, table: Interned, count: int) -> Interned:
        """Return a multiple of a table."""
        number, low = table
        if count == 1:
            return table
        hit = self._times.get((number, count))
        if hit is None:
            array = self.tables.array(number)
            more = np.where(array < INFINITE, array * count, INFINITE)
            hit = self._times[number, count] = self.tables.intern(more)[0]
        return hit, low * count

    def flipped(self, number: int) -> Interned:
        """Return a table of two dims, transposed."""
        return self._turn(number, diagonal=False)

    def diagonal(self, number: int) -> Interned:
        """Return the diagonal of a table of two dims."""
        return self._turn(number, diagonal=True)

    def _turn(self, number: int, *, diagonal: bool) -> Interned:
        hit = self._turned.get((number, diagonal))
        if hit is None:
            array = self.tables.array(number)
            turned = array.diagonal() if diagonal else array.T
            hit = self._turned[number, diagonal] = self.tables.intern(turned.copy())
        return hit


class CostTables(TableStore):
    """Tables, placements and memoised pieces shared by all problems of a propagation.

    All of it follows from the costs, the axes and the keys: so what a propagation has computed
    serves the next (:mod:`.kept`), but only a single propagation at a time.
    """

    def __init__(self, costs: Costs, axes: Sequence[Axis]) -> None:
        super().__init__(Tables())
        self.costs, self.axes = costs, axes
        self.conversions = Conversions(costs)
        self._along: dict[int, CostTables] = {}
        self.strategies: dict[tuple[int, ...], StrategyTable] = {}
        self.along_axes: dict[tuple[int, ...], Sized] = {}
        """The objects that are made with these tables, by the numbers of their axes."""

    def along(self, axis: int) -> CostTables:
        """Return the tables at the costs of an axis; tables and placements are shared."""
        if not self.costs.links:
            return self
        if axis not in self._along:
            other = self._along[axis] = copy.copy(self)
            other.costs = self.costs.along(axis)
            other.conversions = self.conversions.along(axis)
        return self._along[axis]

    @property
    def size(self) -> int:
        """Return how many pieces are memoised."""
        return len(self._turned) + sum(map(len, self.along_axes.values()))

    def serve(self, sources: frozenset[int], want: int) -> int:
        """Return the cost of reading a label from those that are stored."""
        if want in sources:
            return 0
        if R not in sources:
            return INFINITE
        return self.costs.slice if want >= 0 else self.costs.partial

    def parts(
        self, rule: Rule, strategy: OpStrategy, ranks: int, others: Others
    ) -> tuple[int, int]:
        """Return the unscaled costs of a call's local work and of its communication."""
        c, flops, sent, launches, share = self.costs, rule.flops, 0, 0, 1
        sizes = list(rule.in_bytes + rule.out_bytes)
        for n, other in ((ranks, strategy), *others):
            if other is None or other.factor is not None:
                flops //= n
                share *= n
            if other is None:
                sizes = [b // n for b in sizes]
            else:
                labels = other.needs + other.gives
                sizes = [b // n if x >= 0 else b for b, x in zip(sizes, labels)]
        result_bytes = sum(sizes[len(rule.in_bytes) :])
        if strategy.factor is not None:
            share //= ranks
            sent, launches = sent_inside(rule.factors[strategy.factor], result_bytes, ranks, share)
        return c.work(flops, rule.moved_bytes(sizes), result_bytes), c.sending(sent, launches)
