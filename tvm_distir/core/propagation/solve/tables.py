# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shares tables, placements and costs of edges and work between problems of a propagation."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from tvm_distir.core.ir.placement import R
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.graph.graph import Axis
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Array

from .alternatives import Alternatives, OpStrategy, StrategyTable
from .cost import Conversions, Costs, sent_inside
from .source import Interned


class PriceTables:
    """Tables, placements and memoised pieces shared by all problems of a propagation.

    All of it follows from the costs, the axes and the keys: so what a propagation has computed
    serves the next (:mod:`.kept`), but only a single propagation at a time.
    """

    def __init__(self, costs: Costs, axes: Sequence[Axis]) -> None:
        self.costs, self.axes = costs, axes
        self.tables, self.forms = Tables(), StrategyTable()
        self.conversions = Conversions(costs)
        self.ops: dict[Any, tuple[Alternatives, tuple[int, int] | None]] = {}
        self._turned: dict[tuple[int, bool], Interned] = {}
        self._times: dict[tuple[int, int], int] = {}
        self._along: dict[int, PriceTables] = {}
        self._edges: dict[Any, tuple[int, int]] = {}
        self._shares: dict[Any, tuple[int, tuple[int, int], list[tuple[int, int]]]] = {}
        self._works: dict[Any, tuple[int, int]] = {}
        self._readers: dict[Any, Interned] = {}
        self.together: dict[tuple[int, ...], Sized] = {}
        """What is made with these tables for several axes at once, by the axes."""

    def along(self, axis: int) -> PriceTables:
        """Return the tables at the costs of an axis; tables and placements are shared."""
        if not self.costs.links:
            return self
        if axis not in self._along:
            other = self._along[axis] = copy.copy(self)
            other.costs = self.costs.along(axis)
            other.conversions = self.conversions.along(axis)
            other.ops, other._edges, other._shares = {}, {}, {}
            other._works, other._readers = {}, {}
            other._along = {}
        return self._along[axis]

    @property
    def size(self) -> int:
        """Return how many pieces are memoised."""
        memos: tuple[Sized, ...] = (
            self.ops, self._turned, self._edges, self._shares, self._works, self._readers,
            *self.together.values(),
        )  # fmt: skip
        return sum(map(len, memos)) + sum(other.size for other in self._along.values())

    def table(self, rows: Sequence[Sequence[int]]) -> Interned:
        """Return :meth:`~tvm_distir.core.solver.cost_tables.Tables.table` of these rows."""
        return self.tables.table(rows)

    def add(self, first: int, second: int) -> Interned:
        """Return :meth:`~tvm_distir.core.solver.cost_tables.Tables.add` of two tables."""
        return self.tables.add(first, second)

    def times(self, table: Interned, count: int) -> Interned:
        """Return a multiple of a table."""
        number, low = table
        hit = self._times.get((number, count))
        if hit is None:
            array = self.tables.array(number)
            more = np.where(array < INFINITE, array * count, INFINITE)
            hit = self._times[number, count] = self.tables.intern(more)[0]
        return hit, low * count

    def array(self, number: int) -> Array:
        """Return :meth:`~tvm_distir.core.solver.cost_tables.Tables.array` of a table."""
        return self.tables.array(number)

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

    def edge(
        self,
        producer: Alternatives,
        result: int,
        consumer: Alternatives,
        operands: tuple[int, ...],
        size_bytes: int,
        ranks: int,
        held: bool,
    ) -> tuple[int, int]:
        """Return the table (producer x consumer strategies) of a value with a single consumer."""
        key = (producer.number, result, consumer.number, operands, size_bytes, ranks, held)
        hit = self._edges.get(key)
        if hit is None:
            wanted = [frozenset([needs[i] for i in operands]) for needs in consumer.needs]
            hit = self._supplied(producer, result, wanted, size_bytes, ranks, held)
            self._edges[key] = hit
        return hit

    def _supplied(
        self,
        producer: Alternatives,
        result: int,
        wanted: Sequence[frozenset[int]],
        size_bytes: int,
        ranks: int,
        held: bool,
    ) -> Interned:
        """Return the storing costs (producer's strategies x sets of labels)."""
        supply, rows = self.conversions.supply, dict[int, list[int]]()
        labels = [gives[result] for gives in producer.gives]
        for label in labels:
            if label not in rows:
                rows[label] = [supply(label, s, size_bytes, ranks, held)[0] for s in wanted]
        return self.tables.table([rows[label] for label in labels])

    def share(
        self,
        producer: Alternatives,
        result: int,
        consumers: tuple[tuple[Alternatives, tuple[int, ...]], ...],
        size_bytes: int,
        ranks: int,
        held: bool,
    ) -> tuple[int, tuple[int, int], list[tuple[int, int]]]:
        """Return the variable of the set of labels in which a value with several readers is stored.

        Returns the number of sets, the table producer x set, and per consumer the table consumer
        x set. A set is the replicated label, which serves all, or at most two other labels.
        """
        key = (producer, result, consumers, size_bytes, ranks, held)  # alternatives are interned
        hit = self._shares.get(key)
        if hit is not None:
            return hit
        wanted = tuple(
            sorted(
                {needs[i] for consumer, ops in consumers for needs in consumer.needs for i in ops}
                - {R}
            )
        )
        sets = [frozenset((R,))]
        for count in (1, 2):
            sets += [frozenset(c) for c in itertools.combinations(wanted, count)]
        first = self._supplied(producer, result, sets, size_bytes, ranks, held)
        rest = [self._served(consumer, ops, wanted, sets) for consumer, ops in consumers]
        self._shares[key] = len(sets), first, rest
        return self._shares[key]

    def _served(
        self,
        consumer: Alternatives,
        operands: tuple[int, ...],
        wanted: tuple[int, ...],
        sets: Sequence[frozenset[int]],
    ) -> Interned:
        """Return the costs (consumer's strategies x sets of ``wanted`` labels) of reading."""
        key = (consumer.number, operands, wanted)
        hit = self._readers.get(key)
        if hit is None:
            serving = {x: [self.serve(s, x) for s in sets] for x in (*wanted, R)}
            rows = [[serving[needs[i]] for i in operands] for needs in consumer.needs]
            hit = self._readers[key] = self.tables.table(
                [[min(INFINITE, sum(each)) for each in zip(*row)] for row in rows]
            )
        return hit

    def serve(self, held: frozenset[int], want: int) -> int:
        """Return the cost of reading a label from those that are stored."""
        if want in held:
            return 0
        if R not in held:
            return INFINITE
        return self.costs.slice if want >= 0 else self.costs.partial

    def work(
        self,
        rule: Rule,
        alternatives: Alternatives,
        ranks: int,
        others: tuple[tuple[int, tuple[int, ...] | None, bool], ...],
    ) -> tuple[int, int]:
        """Return the unary table: local FLOPs, memory traffic, and communication inside.

        ``others``: per other axis of the mesh its size, its labels (None: undecided, taken to
        shard everything it can) and whether it splits the work.
        """
        key = (self.forms.rule_number(rule), alternatives.number, ranks, others)
        hit = self._works.get(key)
        if hit is None:
            hit = self._works[key] = self.tables.table(
                [[self._work(rule, alt, ranks, others) for alt in alternatives.items]]
            )
        return hit

    def _work(
        self,
        rule: Rule,
        alt: OpStrategy,
        ranks: int,
        others: tuple[tuple[int, tuple[int, ...] | None, bool], ...],
    ) -> int:
        local, sent = self.parts(rule, alt, ranks, others)
        return self.costs.scaled(local + sent)

    def parts(
        self,
        rule: Rule,
        alt: OpStrategy,
        ranks: int,
        others: tuple[tuple[int, tuple[int, ...] | None, bool], ...],
    ) -> tuple[int, int]:
        """Return the unscaled costs of a call's local work and of its communication."""
        c, flops, sent, launches = self.costs, rule.flops, 0, 0
        sizes = list(rule.in_bytes + rule.out_bytes)
        mine = (ranks, alt.needs + alt.gives, alt.factor is not None)
        for n, labels, splits in (mine, *others):
            flops = flops // n if splits else flops
            if labels is None:
                sizes = [b // n for b in sizes]
            else:
                sizes = [b // n if x >= 0 else b for b, x in zip(sizes, labels)]
        kept = sum(sizes[len(rule.in_bytes) :])
        if alt.factor is not None:
            share = math.prod(n for n, _, splits in others if splits)
            sent, launches = sent_inside(rule.factors[alt.factor], kept, ranks, share)
        return c.work(flops, sum(sizes), kept), c.sending(sent, launches)
