# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes cost tables of states: work, stored parameters, and resharding between states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.solve.alternatives import OpStrategy
from tvm_distir.core.propagation.solve.tables import PriceTables
from tvm_distir.core.solver.problem import INFINITE, Array

from .states import JointForms, JointStrategies

Interned = tuple[int, int]
"""Number of a table, and the minimum taken out of it."""

Held = tuple[tuple[int, bool], ...]
"""Per axis what a byte that moves counts as, and whether the value may not move at all."""

Reader = tuple[JointStrategies, tuple[int, ...]]
"""A consumer of a value: its states, and which of its operands the value is."""

Kept = tuple[int, Interned, list[Interned]]
"""Number of label sets in which a value may be stored, with the tables of the producer's and of
each consumer's states over these sets."""

OpTable = tuple[JointStrategies, Interned | None]
"""States of an op and, where there are several, what each costs."""

MOST_SETS = 256
"""Limit on the joint label sets of a variable; beyond it each axis has a variable."""


class JointTables:
    """Tables over the states of nodes on a mesh; equal tables are made once.

    Parameters
    ----------
    prices : PriceTables
        At each axis' costs; the tables are interned there.
    mesh_axes : sequence of int
        Numbers of the mesh's axes.
    """

    def __init__(self, prices: PriceTables, mesh_axes: Sequence[int]) -> None:
        self.prices, self.mesh_axes = prices, tuple(mesh_axes)
        self.axes = [prices.axes[a] for a in mesh_axes]
        self.ranks = [axis.size for axis in self.axes]
        self.forms = JointForms(prices.forms, self.axes)
        self._along = [prices.along(a) for a in mesh_axes]
        self._known: dict[Any, Any] = {}
        self._ops: dict[tuple[int, tuple[int, ...], tuple[int, ...]], OpTable] = {}
        self._edges: dict[tuple[int, int, int, tuple[int, ...], int, Held], Interned] = {}

    @classmethod
    def of(cls, prices: PriceTables, mesh_axes: Sequence[int]) -> JointTables:
        """Return the tables of some axes, which are cached in ``prices``."""
        axes = tuple(mesh_axes)
        tables = prices.together.get(axes)
        if not isinstance(tables, cls):
            tables = prices.together[axes] = cls(prices, axes)
        return tables

    def __len__(self) -> int:
        """Return how many pieces are memoised."""
        return len(self._known) + len(self._ops) + len(self._edges)

    def op(self, rule: Rule, masks: tuple[int, ...], partials: tuple[int, ...]) -> OpTable:
        """Return the states of an op and, where there are several, the cost of each.

        That is its local work, and what it sends inside along all axes. Arguments as for
        :meth:`.states.JointForms.of_rule`.
        """
        key = (id(rule), masks, partials)
        op_table = self._ops.get(key)
        if op_table is None:
            states, table = self.forms.of_rule(rule, masks, partials), None
            if len(states) > 1:
                costs = [self._work(rule, state) for state in states.items]
                table = self.prices.tables.intern(_capped(np.array(costs)))
            op_table = self._ops[key] = states, table
        return op_table

    def _work(self, rule: Rule, state: Sequence[OpStrategy]) -> int:
        sides = [(n, x.needs + x.gives, x.factor is not None) for n, x in zip(self.ranks, state)]
        local = sent = 0
        for i, (prices, strategy) in enumerate(zip(self._along, state)):
            others = tuple(sides[:i] + sides[i + 1 :])
            local, sent_here = prices.parts(rule, strategy, self.ranks[i], others)
            sent += sent_here
        return self.prices.costs.scaled(local + sent)

    def held(self, states: JointStrategies, size_bytes: int) -> Interned:
        """Return per state of a free parameter the cost of its bytes, per axis with a choice."""
        key = ("held", states.number, size_bytes)
        if key not in self._known:
            open_axes = [i for i, column in enumerate(zip(*states.items)) if len(set(column)) > 1]
            costs = self.prices.costs
            rows = []
            for form in states.given(0):
                cut = [n if label >= 0 else 1 for n, label in zip(self.ranks, form)]
                weighed = [costs.hold * self._bytes(size_bytes, form, i) for i in open_axes]
                rows.append(sum(costs.scaled(x // cut[i]) for i, x in zip(open_axes, weighed)))
            self._known[key] = self.prices.tables.intern(np.array(rows, np.int64))
        table: Interned = self._known[key]
        return table

    def moved(self, states: JointStrategies, size_bytes: int) -> Interned:
        """Return per state of a move to this mesh the cost of the bytes a device receives."""
        key = ("moved", states.number, size_bytes)
        if key not in self._known:
            costs = self.prices.costs
            rows = [
                costs.scaled(costs.wire * self._bytes(size_bytes, form)) for form in states.given(0)
            ]
            self._known[key] = self.prices.tables.intern(np.array(rows, np.int64))
        table: Interned = self._known[key]
        return table

    def _bytes(self, size_bytes: int, form: Sequence[int], without: int = -1) -> int:
        """Return a device's bytes of a placed value; unsharded along the axis ``without``."""
        for i, (n, label) in enumerate(zip(self.ranks, form)):
            if label >= 0 and i != without:
                size_bytes = -(-size_bytes // n)
        return size_bytes

    def edge(
        self,
        producer: JointStrategies,
        result: int,
        consumer: JointStrategies,
        operands: tuple[int, ...],
        size_bytes: int,
        held: Held,
    ) -> Interned:
        """Return the table (producer's states x consumer's) of a value with a single consumer."""
        key = (producer.number, result, consumer.number, operands, size_bytes, held)
        table = self._edges.get(key)
        if table is None:
            total = np.zeros((len(producer), len(consumer)), np.int64)
            for i in range(len(self.axes)):
                wanted = [frozenset(needs) for needs in consumer.needed(i, operands)]
                total = _capped(
                    total + self._supplied(producer, result, i, wanted, size_bytes, held)
                )
            table = self._edges[key] = self._interned(total)
        return table

    def _interned(self, array: Array) -> Interned:
        """Intern a table; the dim of a node with a single state is dropped."""
        shape = [n for n in array.shape if n > 1]
        return self.prices.tables.intern(_capped(array).reshape(shape))

    def _supplied(
        self,
        producer: JointStrategies,
        result: int,
        axis: int,
        wanted: Sequence[frozenset[int]],
        size_bytes: int,
        held: Held,
    ) -> Array:
        """Return the cost of storing sets of labels along an axis: (producer's states x sets)."""
        times, stays = held[axis]
        supply, ranks = self._along[axis].conversions.supply, self.ranks[axis]
        sets = list(dict.fromkeys(wanted))
        column = [sets.index(forms) for forms in wanted]
        rows: dict[tuple[int, int], int] = {}
        prices: list[list[int]] = []
        row = []
        for form in producer.given(result):
            key = form[axis], self._bytes(size_bytes, form, axis) * times
            if key not in rows:
                rows[key] = len(prices)
                prices.append([supply(key[0], forms, key[1], ranks, stays)[0] for forms in sets])
            row.append(rows[key])
        table: Array = np.array(prices, np.int64)[np.ix_(row, column)]
        return table

    def share(
        self,
        producer: JointStrategies,
        result: int,
        readers: tuple[Reader, ...],
        size_bytes: int,
        held: Held,
    ) -> list[Kept]:
        """Return variables of the label sets in which a value with several readers is stored."""
        numbers = tuple([(states.number, operands) for states, operands in readers])
        key = ("share", producer.number, result, numbers, size_bytes, held)
        if key not in self._known:
            sets = [self._sets(i, readers) for i in range(len(self.axes))]
            count = math.prod(map(len, sets))
            together = (
                [[*range(len(sets))]] if count <= MOST_SETS else [[i] for i in range(len(sets))]
            )
            self._known[key] = [
                self._kept(producer, result, readers, group, sets, size_bytes, held)
                for group in together
            ]
        shares: list[Kept] = self._known[key]
        return shares

    def _sets(self, axis: int, readers: Sequence[Reader]) -> list[frozenset[int]]:
        """Return the sets of up to two labels in which a value may be stored along an axis."""
        wanted = sorted({x for states, o in readers for row in states.needed(axis, o) for x in row})
        return [frozenset(c) for n in (1, 2) for c in itertools.combinations(wanted, n)]

    def _kept(
        self,
        producer: JointStrategies,
        result: int,
        readers: Sequence[Reader],
        group: Sequence[int],
        sets: Sequence[Sequence[frozenset[int]]],
        size_bytes: int,
        held: Held,
    ) -> Kept:
        picks = list(itertools.product(*[range(len(sets[i])) for i in group]))
        first = np.zeros((len(producer), len(picks)), np.int64)
        rest = [np.zeros((len(states), len(picks)), np.int64) for states, _ in readers]
        for at, i in enumerate(group):
            columns = [pick[at] for pick in picks]
            supplied = self._supplied(producer, result, i, sets[i], size_bytes, held)
            first = _capped(first + supplied[:, columns])
            served = [self._served(states, operands, i, sets[i]) for states, operands in readers]
            rest = [_capped(x + more[:, columns]) for x, more in zip(rest, served)]
        return len(picks), self._interned(first), [self._interned(table) for table in rest]

    def _served(
        self,
        states: JointStrategies,
        operands: tuple[int, ...],
        axis: int,
        sets: Sequence[frozenset[int]],
    ) -> Array:
        """Return the cost of each consumer state with each stored set: (states x sets)."""
        key = ("served", states.number, operands, axis, tuple(sets))
        if key not in self._known:
            serve = self._along[axis].serve
            rows = [
                [min(INFINITE, sum(serve(forms, want) for want in needs)) for forms in sets]
                for needs in states.needed(axis, operands)
            ]
            self._known[key] = np.array(rows, np.int64)
        table: Array = self._known[key]
        return table


def _capped(array: Array) -> Array:
    """Clip costs to :data:`INFINITE`."""
    result: Array = np.minimum(array, INFINITE)
    return result


__all__ = ["Held", "Interned", "JointTables", "Kept", "Reader"]
