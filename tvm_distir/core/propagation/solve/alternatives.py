# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Enumerates a node's strategies along an axis: operand labels, result labels and factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tvm import tirx

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.ops.dims import nominal
from tvm_distir.core.ops.factor import Factor, Rule
from tvm_distir.core.propagation.graph.graph import divisible


class OpStrategy(NamedTuple):
    """Labels needed per operand, given per result, and the factor number (None: replicated)."""

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    factor: int | None


class Alternatives:
    """Interned list of strategies, in order of preference."""

    def __init__(self, number: int, items: tuple[OpStrategy, ...]) -> None:
        self.number, self.items = number, items
        self.needs = tuple(x.needs for x in items)
        self.gives = tuple(x.gives for x in items)

    def __len__(self) -> int:
        return len(self.items)


class StrategyTable:
    """Factory that interns strategies."""

    def __init__(self) -> None:
        self._interned: dict[tuple[OpStrategy, ...], Alternatives] = {}
        self._of_rule: dict[Any, Alternatives] = {}
        self._ends: dict[tuple[int, ...], Alternatives] = {}
        self._whole: dict[tuple[int, int], Alternatives] = {}
        self._turned: dict[int, Alternatives] = {}
        self._rules: list[Rule] = []
        self._numbers: dict[int, int] = {}

    def intern(self, items: Sequence[OpStrategy]) -> Alternatives:
        """Return the unique object for these strategies."""
        key = tuple(items)
        hit = self._interned.get(key)
        if hit is None:
            hit = self._interned[key] = Alternatives(len(self._interned), key)
        return hit

    def rule_number(self, rule: Rule) -> int:
        """Return a stable number for a rule object."""
        number = self._numbers.get(id(rule))
        if number is None:
            number = self._numbers[id(rule)] = len(self._rules)
            self._rules.append(rule)  # kept alive, so that its id stays unique
        return number

    def of_rule(
        self, rule: Rule, ranks: int, mask: int, partial: int, taken: Mapping[int, int]
    ) -> Alternatives:
        """Return the strategies of an op along an axis of ``ranks`` devices.

        Parameters
        ----------
        rule : Rule
        ranks : int
        mask : int
            Bit i: the axis reaches factor i.
        partial : int
            Bit i: operand i may be a partial sum.
        taken : mapping of int to int
            Factor number to the devices of other axes that split it already.
        """
        key = (self.rule_number(rule), ranks, mask, partial, tuple(sorted(taken.items())))
        hit = self._of_rule.get(key)
        if hit is None:
            hit = self._of_rule[key] = self._make(rule, ranks, mask, partial, taken)
        return hit

    def _make(
        self, rule: Rule, ranks: int, mask: int, partial: int, taken: Mapping[int, int]
    ) -> Alternatives:
        items, whole = [], (R,) * len(rule.in_bytes)
        complete = (R,) * len(rule.out_bytes)
        for i, f in enumerate(rule.factors):
            if mask >> i & 1 and factor_fits(f, ranks, taken.get(i, 1)):
                pending = P if f.kind == "sum" else R
                gives = tuple(pending if d is None else d for d in f.outs)
                needs = tuple(R if d is None else d for d in f.ins)
                items.append(OpStrategy(needs, gives, i))
        for group in rule.linear:
            if any(partial >> i & 1 for i in group):
                needs = tuple(P if i in group else R for i in range(len(whole)))
                items.append(OpStrategy(needs, (P,) * len(complete), None))
        items.append(OpStrategy(whole, complete, None))
        return self.intern(items)

    def ends(self, labels: Sequence[int], *, needs: bool) -> Alternatives:
        """Return strategies of a boundary value: a consumer (``needs``) or a producer of labels."""
        key = (needs, *labels)
        hit = self._ends.get(key)
        if hit is None:
            hit = self._ends[key] = self.intern(
                [
                    OpStrategy((x,), (), None) if needs else OpStrategy((), (x,), None)
                    for x in labels
                ]
            )
        return hit

    def whole(self, operands: int, results: int) -> Alternatives:
        """Return the only strategy of a replicated node."""
        key = (operands, results)
        hit = self._whole.get(key)
        if hit is None:
            only = OpStrategy((R,) * operands, (R,) * results, None)
            hit = self._whole[key] = self.intern([only])
        return hit

    def turned(self, alternatives: Alternatives) -> Alternatives:
        """Exchange producer and consumer: a producer inside a function is a consumer outside."""
        hit = self._turned.get(alternatives.number)
        if hit is None:
            hit = self._turned[alternatives.number] = self.intern(
                [OpStrategy(x.gives, x.needs, x.factor) for x in alternatives.items]
            )
        return hit


def fits(size: Any, ranks: int, taken: int, uneven: bool) -> bool:
    """Return whether ``size``, already split by ``taken``, may be split by ``ranks`` more.

    An uneven dim is sharded only when there is more than an element for every shard.
    """
    if divisible(size, ranks * taken):
        return True
    known = isinstance(size, int | tirx.IntImm)
    return uneven and known and bool(nominal(size) > ranks * taken)


def factor_fits(factor: Factor, ranks: int, taken: int) -> bool:
    """Return whether a factor, already split by ``taken``, may be split by ``ranks`` more."""
    uneven = factor.uneven and (taken == 1 or not factor.adjacent)
    return fits(factor.size, ranks, taken, uneven)
