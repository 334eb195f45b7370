# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What all models of one propagation share: tables, forms, prices of edges and of work."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ..ir import R
from ..native import INFINITE, Tables
from ..rules import Rule
from .cost import Conversions, Costs, sent_inside
from .forms import Alternative, Alternatives, Forms
from .graph import Axis


class Workshop:
    """What is shared by all models of one propagation: tables, forms, memoised pieces."""

    def __init__(self, costs: Costs, axes: Sequence[Axis]) -> None:
        self.costs, self.axes = costs, axes
        self.tables, self.forms = Tables(), Forms()
        self.conversions = Conversions(costs)
        self.ops: dict[Any, tuple[Alternatives, tuple[int, int] | None]] = {}
        self._memo: dict[Any, Any] = {}
        self._edges: dict[Any, tuple[int, int]] = {}
        self._shares: dict[Any, tuple[int, tuple[int, int], list[tuple[int, int]]]] = {}
        self._works: dict[Any, tuple[int, int]] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Memoise ``make()`` under ``key``."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def edge(
        self,
        giver: Alternatives,
        result: int,
        taker: Alternatives,
        operands: tuple[int, ...],
        size_bytes: int,
        ranks: int,
        held: bool,
    ) -> tuple[int, int]:
        """Table (giver's alternatives x taker's) of a value with one consumer."""
        key = (giver.number, result, taker.number, operands, size_bytes, ranks, held)
        hit = self._edges.get(key)
        if hit is None:
            supply = self.conversions.supply
            wanted = [frozenset([needs[i] for i in operands]) for needs in taker.needs]
            hit = self._edges[key] = self.tables.table(
                [
                    [supply(gives[result], needs, size_bytes, ranks, held)[0] for needs in wanted]
                    for gives in giver.gives
                ]
            )
        return hit

    def share(
        self,
        giver: Alternatives,
        result: int,
        takers: tuple[tuple[Alternatives, tuple[int, ...]], ...],
        size_bytes: int,
        ranks: int,
        held: bool,
    ) -> tuple[int, tuple[int, int], list[tuple[int, int]]]:
        """A value with several consumers: the variable of the set of forms it is held in.

        Returns the number of sets, the table giver x set, and per taker the table taker x set.
        A set is the replicated form, which serves all, or one or two other forms.
        """
        ends = tuple([(t.number, ops) for t, ops in takers])
        key = (giver.number, result, ends, size_bytes, ranks, held)
        hit = self._shares.get(key)
        if hit is not None:
            return hit
        wanted = sorted(
            {needs[i] for taker, ops in takers for needs in taker.needs for i in ops} - {R}
        )
        sets = [frozenset((R,))]
        for count in (1, 2):
            sets += [frozenset(c) for c in itertools.combinations(wanted, count)]
        c = self.costs

        def serve(held_forms: frozenset[int], want: int) -> int:
            if want in held_forms:
                return 0
            if R not in held_forms:
                return INFINITE
            return c.slice if want >= 0 else c.partial

        supply = self.conversions.supply
        first = self.tables.table(
            [
                [supply(gives[result], s, size_bytes, ranks, held)[0] for s in sets]
                for gives in giver.gives
            ]
        )
        rest = [
            self.tables.table(
                [
                    [min(INFINITE, sum(serve(s, needs[i]) for i in ops)) for s in sets]
                    for needs in taker.needs
                ]
            )
            for taker, ops in takers
        ]
        self._shares[key] = len(sets), first, rest
        return self._shares[key]

    def work(
        self,
        rule: Rule,
        alternatives: Alternatives,
        ranks: int,
        others: tuple[tuple[int, tuple[int, ...] | None, bool], ...],
    ) -> tuple[int, int]:
        """Unary table: local FLOPs and memory traffic, and what goes over the wire inside.

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
        alt: Alternative,
        ranks: int,
        others: tuple[tuple[int, tuple[int, ...] | None, bool], ...],
    ) -> int:
        local, sent = self.parts(rule, alt, ranks, others)
        return self.costs.scaled(local + sent)

    def parts(
        self,
        rule: Rule,
        alt: Alternative,
        ranks: int,
        others: tuple[tuple[int, tuple[int, ...] | None, bool], ...],
    ) -> tuple[int, int]:
        """Unscaled cost of a call's local work, and of what it sends along its own axis."""
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
        return c.flop * flops + c.memory * sum(
            sizes
        ) + c.keep * kept, c.wire * sent + c.launch * launches
