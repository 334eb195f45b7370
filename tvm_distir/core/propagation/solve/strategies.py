# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Enumerates the strategies of nodes along some axes of a mesh at once."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tvm import ir, tirx

from tvm_distir.core.ir.placement import Labels, P, R
from tvm_distir.core.ops.dims import nominal
from tvm_distir.core.ops.factor import Factor, Rule
from tvm_distir.core.propagation.graph.graph import divisible
from tvm_distir.support import memoized

MOST_STRATEGIES = 256
"""Limit on the strategies of a node along several axes; beyond it they are solved in sequence."""


class OpStrategy(NamedTuple):
    """Labels needed per operand, given per result, and the factor number (None: replicated)."""

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    factor: int | None


NodeStrategy = tuple[OpStrategy, ...]
"""A strategy per axis."""

Others = tuple[tuple[int, OpStrategy | None], ...]
"""The size and the strategy of each other axis of the mesh; None: not decided, it splits all it
can."""


class TooManyStrategies(Exception):
    """Error for a node with more than :data:`MOST_STRATEGIES` strategies."""


class Strategies:
    """Interned list of strategies, in order of preference.

    Attributes
    ----------
    needs, gives : list of tuple
        The placements (a label per axis) of all operands, and of all results, of each strategy.
    """

    def __init__(self, number: int, items: tuple[NodeStrategy, ...]) -> None:
        self.number, self.items = number, items
        self.needs = [tuple(zip(*[x.needs for x in axes])) for axes in items]
        self.gives = [tuple(zip(*[x.gives for x in axes])) for axes in items]

    def __len__(self) -> int:
        return len(self.items)

    @functools.cached_property
    def operands(self) -> list[tuple[Labels, ...]]:
        """Return per operand the placement that each strategy needs it in."""
        return list(zip(*self.needs))

    @functools.cached_property
    def results(self) -> list[tuple[Labels, ...]]:
        """Return per result the placement that each strategy gives it in."""
        return list(zip(*self.gives))


class StrategyTable:
    """Factory that interns strategies along axes of some sizes."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self._interned: dict[tuple[NodeStrategy, ...], Strategies] = {}
        self._known: dict[Any, Strategies] = {}
        self._rules: list[Rule] = []
        self._numbers: dict[int, int] = {}

    def intern(self, items: Sequence[NodeStrategy]) -> Strategies:
        """Return the unique object for these strategies."""
        key = tuple(items)
        strategies = self._interned.get(key)
        if strategies is None:
            strategies = self._interned[key] = Strategies(len(self._interned), key)
        return strategies

    def rule_number(self, rule: Rule) -> int:
        """Return a stable number for a rule object."""
        number = self._numbers.get(id(rule))
        if number is None:
            number = self._numbers[id(rule)] = len(self._rules)
            self._rules.append(rule)  # kept alive, so that its id stays unique
        return number

    def of_rule(
        self, rule: Rule, masks: Sequence[int], partials: Sequence[int], others: Others = ()
    ) -> Strategies:
        """Return the strategies of an op.

        Parameters
        ----------
        rule : Rule
        masks : sequence of int
            A bit mask per axis; bit i: the axis reaches factor i.
        partials : sequence of int
            A bit mask per axis; bit i: operand i may be a partial sum.
        others : Others

        Raises
        ------
        TooManyStrategies
        """
        occupied: dict[int, int] = {}
        for n, strategy in others if others and any(masks) else ():
            if strategy is not None and strategy.factor is not None:
                occupied[strategy.factor] = occupied.get(strategy.factor, 1) * n
        key = (self.rule_number(rule), masks, partials, tuple(sorted(occupied.items())))
        strategies = self._known.get(key)
        if strategies is None:
            columns = [
                strategies_along(rule, n, mask, partial, occupied)
                for n, mask, partial in zip(self.ranks, masks, partials)
            ]
            together = _product(columns)
            if len(columns) > 1:
                together = self.dividing(rule, together, occupied)
            strategies = self._known[key] = self.intern(together)
        return strategies

    def dividing(
        self, rule: Rule, choices: Iterable[NodeStrategy], occupied: Mapping[int, int]
    ) -> list[NodeStrategy]:
        """Return the strategies of which every factor has parts for all axes that follow it."""
        return [axes for axes in choices if self._divides(rule, axes, occupied)]

    def _divides(self, rule: Rule, axes: NodeStrategy, occupied: Mapping[int, int]) -> bool:
        """Return whether every factor has parts for all axes that follow it."""
        followed: dict[int, list[int]] = {}
        for n, strategy in zip(self.ranks, axes):
            if strategy.factor is not None:
                followed.setdefault(strategy.factor, []).append(n)
        return all(
            factor_fits(rule.factors[f], n, occupied.get(f, 1) * math.prod(parts) // n)
            for f, parts in followed.items()
            if len(parts) > 1
            for n in parts
        )

    def ends(
        self, columns: Sequence[Sequence[OpStrategy]], shape: Sequence[Any] | None
    ) -> Strategies:
        """Return the strategies of a node that is no op, from its strategies along each axis.

        Parameters
        ----------
        columns : sequence of sequence of OpStrategy
        shape : sequence, optional
            The shape of the node's value, whose dims are to have parts for all axes that shard
            them, unless none of these has a choice.

        Raises
        ------
        TooManyStrategies
        """
        sizes = None
        if shape is not None and len(columns) > 1:
            sizes = tuple([_known(n) for n in shape])
        key = (tuple(map(tuple, columns)), sizes)
        strategies = self._known.get(key)
        if strategies is None:
            free = [len(column) > 1 for column in columns]
            together = [x for x in _product(columns) if sizes is None or self._cuts(x, sizes, free)]
            strategies = self._known[key] = self.intern(together)
        return strategies

    def _cuts(self, axes: NodeStrategy, shape: Sequence[int | None], free: Sequence[bool]) -> bool:
        """Return whether every dim has parts for all axes that shard it."""
        cut: dict[int, list[int]] = {}
        for i, strategy in enumerate(axes):
            for label in {*strategy.needs, *strategy.gives}:
                if label >= 0:
                    cut.setdefault(label, []).append(i)
        for d, numbers in cut.items():
            if len(numbers) < 2 or not any(free[i] for i in numbers):
                continue
            parts = math.prod(self.ranks[i] for i in numbers)
            if not all(
                fits(shape[d], self.ranks[i], parts // self.ranks[i], True) for i in numbers
            ):
                return False
        return True

    @memoized
    def replicated(self, operands: int, results: int) -> Strategies:
        """Return the only strategy of a replicated node."""
        only = OpStrategy((R,) * operands, (R,) * results, None)
        return self.intern([(only,) * len(self.ranks)])

    @memoized
    def turned(self, strategies: Strategies) -> Strategies:
        """Exchange producer and consumer: a producer inside a function is a consumer outside."""
        turned = [
            tuple([OpStrategy(x.gives, x.needs, x.factor) for x in axes])
            for axes in strategies.items
        ]
        return self.intern(turned)


def strategies_along(
    rule: Rule,
    ranks: int,
    mask: int,
    partial: int,
    occupied: Mapping[int, int],
    enough: Callable[[Iterable[int]], bool] = any,
) -> list[OpStrategy]:
    """Return the strategies of an op along an axis of ``ranks`` devices.

    ``occupied`` has what other axes split its factors into. Partial sums are taken by groups of
    operands of which ``enough`` may be partial.
    """
    items, replicated = list[OpStrategy](), (R,) * len(rule.in_bytes)
    complete = (R,) * len(rule.out_bytes)
    for i, f in enumerate(rule.factors):
        if mask >> i & 1 and factor_fits(f, ranks, occupied.get(i, 1)):
            pending = P if f.kind == "sum" else R
            gives = tuple(pending if d is None else d for d in f.outs)
            needs = tuple(R if d is None else d for d in f.ins)
            items.append(OpStrategy(needs, gives, i))
    for group in rule.linear:
        if enough(partial >> i & 1 for i in group):
            needs = tuple(P if i in group else R for i in range(len(replicated)))
            items.append(OpStrategy(needs, (P,) * len(complete), None))
    items.append(OpStrategy(replicated, complete, None))
    return items


def _known(size: int | ir.Expr) -> int | None:
    """Return a size as a number; None for a symbolic size, which is assumed to divide."""
    return int(size) if isinstance(size, int | tirx.IntImm) else None


def _product(columns: Sequence[Sequence[OpStrategy]]) -> list[NodeStrategy]:
    """Return all combinations, the first axis' last strategies last."""
    if len(columns) > 1 and math.prod(map(len, columns)) > MOST_STRATEGIES:
        raise TooManyStrategies
    return list(itertools.product(*columns))


def fits(size: int | ir.Expr, ranks: int, occupied: int, uneven: bool) -> bool:
    """Return whether ``size``, already split by ``occupied``, may be split by ``ranks`` more.

    An uneven dim is sharded only when there is more than an element for every shard.
    """
    if divisible(size, ranks * occupied):
        return True
    known = isinstance(size, int | tirx.IntImm)
    return uneven and known and bool(nominal(size) > ranks * occupied)


def shape_fits(shape: Sequence[int], sizes: Sequence[int], layout: Labels) -> bool:
    """Return whether each dim can be split, unevenly too, over all axes that shard it."""
    for dim, extent in enumerate(shape):
        ranks = 1
        for size, label in zip(sizes, layout):
            if label == dim:
                if not fits(extent, size, ranks, True):
                    return False
                ranks *= size
    return True


def factor_fits(factor: Factor, ranks: int, occupied: int) -> bool:
    """Return whether a factor, already split by ``occupied``, may be split by ``ranks`` more."""
    uneven = factor.uneven and (occupied == 1 or not factor.adjacent)
    return fits(factor.size, ranks, occupied, uneven)
