# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes the cost tables of problems along some axes of a mesh, from weighed bytes and FLOPs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_distir.core.ir.placement import R
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.solver.problem import INFINITE, Array

from .strategies import NodeStrategy, Others, Strategies, StrategyTable
from .tables import CostTables, Interned

HeldLabels = tuple[tuple[int, bool], ...]
"""The cost of a byte that moves, and whether the value may not move at all, per axis."""

Reader = tuple[Strategies, tuple[int, ...]]
Readers = tuple[Reader, ...]
"""A consumer of a value: its strategies, and which of its operands the value is."""

Kept = tuple[int, Interned, list[Interned]]
"""Number of label sets in which a value may be stored, with the tables of the producer's and of
each consumer's strategies over these sets."""

OpTable = tuple[Strategies, Interned | None]
"""Strategies of an op and, where there are several, what each costs."""

Rows = list[list[int]]

Part = tuple[Rows, Sequence[int], Sequence[int]]
"""Part of a table along an axis: distinct rows, the row of each strategy, and the columns."""

MOST_SETS = 256
"""Limit on the joint label sets of a variable; beyond it each axis has a variable."""


class ByteCosts:
    """Tables over the strategies of nodes along axes of a mesh; equal tables are made once.

    Parameters
    ----------
    cost_tables : CostTables
        The tables of costs at each axis' weights, in which the tables are interned.
    axes : sequence of int
        Numbers of the axes.
    """

    def __init__(self, cost_tables: CostTables, axes: Sequence[int]) -> None:
        self.cost_tables, self.numbers = cost_tables, tuple(axes)
        self.axes = [cost_tables.axes[a] for a in axes]
        self.ranks = [axis.size for axis in self.axes]
        self.strategies = cost_tables.strategies.setdefault(self.numbers, StrategyTable(self.ranks))
        self._along = [cost_tables.along(a) for a in axes]
        self._cache: dict[Any, Any] = {}
        self._ops: dict[Any, OpTable] = {}
        self._edges: dict[tuple[int, int, int, tuple[int, ...], int, HeldLabels], Interned] = {}

    @classmethod
    def of(cls, cost_tables: CostTables, axes: tuple[int, ...]) -> ByteCosts:
        """Return the tables of some axes, which are cached in ``cost_tables``."""
        costs = cost_tables.along_axes.get(axes)
        if not isinstance(costs, cls):
            costs = cost_tables.along_axes[axes] = cls(cost_tables, axes)
        return costs

    def __len__(self) -> int:
        """Return how many pieces are memoised."""
        return len(self._cache) + len(self._ops) + len(self._edges)

    def op(
        self, rule: Rule, masks: tuple[int, ...], partials: tuple[int, ...], others: Others
    ) -> OpTable:
        """Return the strategies of an op and, where there are several, the cost of each.

        That is its local work, and what it sends inside along all axes. Arguments as for
        :meth:`.strategies.StrategyTable.of_rule`.
        """
        key = (id(rule), masks, partials, others)
        op_table = self._ops.get(key)
        if op_table is None:
            strategies, table = self.strategies.of_rule(rule, masks, partials, others), None
            if len(strategies) > 1:
                table = self.work(rule, strategies, others)
            op_table = self._ops[key] = strategies, table
        return op_table

    def work(self, rule: Rule, strategies: Strategies, others: Others) -> Interned:
        """Return the cost of each strategy of an op."""
        key = (id(rule), strategies.number, others)
        table: Interned | None = self._cache.get(key)
        if table is None:
            costs = [self._work(rule, axes, others) for axes in strategies.items]
            table = self._cache[key] = self.cost_tables.table([costs])
        return table

    def _work(self, rule: Rule, axes: NodeStrategy, others: Others) -> int:
        if len(axes) == 1:
            local, sent = self._along[0].parts(rule, axes[0], self.ranks[0], others)
            return self.cost_tables.costs.scaled(local + sent)
        sides = tuple(zip(self.ranks, axes))
        local = sent = 0
        for i, (tables, strategy) in enumerate(zip(self._along, axes)):
            beside = sides[:i] + sides[i + 1 :] + others
            local, sent_here = tables.parts(rule, strategy, self.ranks[i], beside)
            sent += sent_here
        return self.cost_tables.costs.scaled(local + sent)

    def held(self, strategies: Strategies, size_bytes: int) -> Interned:
        """Return per strategy of a free parameter the cost of its bytes, per axis with a choice."""
        key = ("held", strategies.number, size_bytes)
        if key not in self._cache:
            columns = enumerate(zip(*strategies.items))
            open_axes = [i for i, column in columns if len(set(column)) > 1]
            costs, row = self.cost_tables.costs, []
            for (layout,) in strategies.gives:
                cut = [n if label >= 0 else 1 for n, label in zip(self.ranks, layout)]
                weighed = [costs.hold * self._bytes(size_bytes, layout, i) for i in open_axes]
                row.append(sum(costs.scaled(x // cut[i]) for i, x in zip(open_axes, weighed)))
            self._cache[key] = self.cost_tables.table([row])
        table: Interned = self._cache[key]
        return table

    def moved(self, strategies: Strategies, size_bytes: int) -> Interned:
        """Return per strategy of a move to this mesh the cost of the bytes a device receives."""
        key = ("moved", strategies.number, size_bytes)
        if key not in self._cache:
            costs = self.cost_tables.costs if len(self.axes) > 1 else self._along[0].costs
            received = [self._bytes(size_bytes, layout) for (layout,) in strategies.gives]
            self._cache[key] = self.cost_tables.table(
                [[costs.scaled(costs.wire * b) for b in received]]
            )
        table: Interned = self._cache[key]
        return table

    def _bytes(self, size_bytes: int, layout: Sequence[int], without: int = -1) -> int:
        """Return a device's bytes of a placed value; unsharded along the axis ``without``."""
        for i, (n, label) in enumerate(zip(self.ranks, layout)):
            if label >= 0 and i != without:
                size_bytes = -(-size_bytes // n)
        return size_bytes

    def edge(
        self,
        producer: Strategies,
        result: int,
        consumer: Strategies,
        operands: tuple[int, ...],
        size_bytes: int,
        stationary: HeldLabels,
    ) -> Interned:
        """Return the table (producer x consumer strategies) of a value with a single consumer."""
        key = (producer.number, result, consumer.number, operands, size_bytes, stationary)
        table = self._edges.get(key)
        if table is None:
            parts = []
            for i in range(len(self.axes)):
                targets = [frozenset([needs[j][i] for j in operands]) for needs in consumer.needs]
                sets, columns = targets, list(range(len(targets)))
                if len(self.axes) > 1:
                    sets = list(dict.fromkeys(targets))
                    columns = [sets.index(labels) for labels in targets]
                rows = self._supplied(producer, result, i, sets, size_bytes, stationary)
                parts.append((*rows, columns))
            table = self._edges[key] = self._sum(parts)
        return table

    def _sum(self, parts: Sequence[Part]) -> Interned:
        """Intern the sum of a table per axis; a single table has its columns in order."""
        if len(parts) == 1:
            rows, of, _ = parts[0]
            return self.cost_tables.table([rows[i] for i in of])
        arrays = [np.array(rows, np.int64)[np.ix_(of, columns)] for rows, of, columns in parts]
        return self.cost_tables.intern(functools.reduce(lambda x, y: _capped(x + y), arrays))

    def _supplied(
        self,
        producer: Strategies,
        result: int,
        axis: int,
        sets: Sequence[frozenset[int]],
        size_bytes: int,
        stationary: HeldLabels,
    ) -> tuple[Rows, list[int]]:
        """Return the costs of storing sets of labels along an axis, and each strategy's row."""
        times, stays = stationary[axis]
        supply, ranks = self._along[axis].conversions.supply, self.ranks[axis]
        layouts, rows = producer.results[result], list[list[int]]()
        at: dict[tuple[int, int], int] = {}
        row_of = dict.fromkeys(layouts, 0)
        for layout in row_of:
            local_bytes = self._bytes(size_bytes, layout, axis) if len(layout) > 1 else size_bytes
            label, size = layout[axis], local_bytes * times
            if (label, size) not in at:
                at[label, size] = len(rows)
                rows.append([supply(label, labels, size, ranks, stays)[0] for labels in sets])
            row_of[layout] = at[label, size]
        return rows, [row_of[layout] for layout in layouts]

    def share(
        self,
        producer: Strategies,
        result: int,
        readers: Readers,
        size_bytes: int,
        stationary: HeldLabels,
    ) -> list[Kept]:
        """Return variables of the label sets in which a value with several readers is stored."""
        key = (producer, result, readers, size_bytes, stationary)  # strategies are interned
        shares: list[Kept] | None = self._cache.get(key)
        if shares is None:
            sets, groups = self.stored(readers)
            shares = self._cache[key] = [
                self._kept(producer, result, readers, group, sets, size_bytes, stationary)
                for group in groups
            ]
        return shares

    def stored(
        self, readers: Sequence[Reader]
    ) -> tuple[list[tuple[frozenset[int], ...]], list[list[int]]]:
        """Return per axis the label sets in which a value may be stored, and the axes per variable.

        A set has up to two labels. Along an only axis the replicated label, which serves all, is
        stored alone.
        """
        sets = []
        for axis in range(len(self.axes)):
            labels = {x[i][axis] for strategies, o in readers for x in strategies.needs for i in o}
            alone = [frozenset((R,))] if len(self.axes) == 1 else []
            targets = sorted(labels.difference(*alone))
            pairs = [frozenset(c) for n in (1, 2) for c in itertools.combinations(targets, n)]
            sets.append((*alone, *pairs))
        numbers = [*range(len(sets))]
        count = math.prod(map(len, sets))
        return sets, [numbers] if count <= MOST_SETS else [[i] for i in numbers]

    def _kept(
        self,
        producer: Strategies,
        result: int,
        readers: Sequence[Reader],
        group: Sequence[int],
        sets: Sequence[tuple[frozenset[int], ...]],
        size_bytes: int,
        stationary: HeldLabels,
    ) -> Kept:
        picks = list(zip(*itertools.product(*[range(len(sets[i])) for i in group])))
        first = self._sum(
            [
                (*self._supplied(producer, result, i, sets[i], size_bytes, stationary), columns)
                for i, columns in zip(group, picks)
            ]
        )
        along = tuple([(i, sets[i]) for i in group])
        rest = [
            self._served(strategies, operands, along, picks) for strategies, operands in readers
        ]
        return len(picks[0]), first, rest

    def _served(
        self,
        strategies: Strategies,
        operands: tuple[int, ...],
        along: tuple[tuple[int, tuple[frozenset[int], ...]], ...],
        picks: Sequence[Sequence[int]],
    ) -> Interned:
        """Return the read costs of a consumer's strategies, by the sets stored along axes."""
        key = (strategies.number, operands, along)
        table: Interned | None = self._cache.get(key)
        if table is None:
            parts = []
            for (axis, sets), columns in zip(along, picks):
                serve = self._along[axis].serve
                labels = {needs[i][axis] for needs in strategies.needs for i in operands}
                serving = {x: [serve(stored, x) for stored in sets] for x in labels}
                rows = [
                    [
                        min(INFINITE, sum(each))
                        for each in zip(*[serving[needs[i][axis]] for i in operands])
                    ]
                    for needs in strategies.needs
                ]
                parts.append((rows, range(len(rows)), columns))
            table = self._cache[key] = self._sum(parts)
        return table


def _capped(array: Array) -> Array:
    """Clip costs to :data:`INFINITE`."""
    result: Array = np.minimum(array, INFINITE)
    return result
