# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Combines alternatives per axis of a mesh to compatible joint states of a node."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.graph.graph import Axis
from tvm_distir.core.propagation.solve.alternatives import (
    OpStrategy,
    StrategyTable,
    factor_fits,
    fits,
)
from tvm_distir.core.propagation.solve.problem import LabellingProblem, Summary

JointStrategy = tuple[OpStrategy, ...]
"""An alternative per axis of the mesh."""

MOST_STATES = 256
"""Limit on the states of a node; beyond it the axes are solved in sequence."""


class TooManyStates(Exception):
    """Error for a node with more than :data:`MOST_STATES` states."""


class JointStrategies:
    """Interned list of states, in order of preference."""

    def __init__(self, number: int, items: tuple[JointStrategy, ...]) -> None:
        self.number, self.items = number, items

    def __len__(self) -> int:
        return len(self.items)

    def given(self, result: int) -> list[tuple[int, ...]]:
        """Return per state the labels with which a result is produced."""
        return [tuple([x.gives[result] for x in state]) for state in self.items]

    def needed(self, axis: int, operands: Sequence[int]) -> list[tuple[int, ...]]:
        """Return per state the labels with which operands are needed along an axis."""
        return [tuple([state[axis].needs[i] for i in operands]) for state in self.items]


JointProblem = LabellingProblem[JointStrategies]
"""A problem along all axes of a mesh."""

JointSummary = Summary[JointStrategies]
"""A summary along all axes of a mesh."""


class JointForms:
    """Factory that interns states.

    Parameters
    ----------
    forms : StrategyTable
        Of the alternatives along a single axis.
    axes : sequence of Axis
        Those of the mesh.
    """

    def __init__(self, forms: StrategyTable, axes: Sequence[Axis]) -> None:
        self.forms = forms
        self.ranks = [axis.size for axis in axes]
        self._interned: dict[tuple[JointStrategy, ...], JointStrategies] = {}
        self._known: dict[Any, JointStrategies] = {}

    def intern(self, items: Sequence[JointStrategy]) -> JointStrategies:
        """Return the unique object for these states."""
        key = tuple(items)
        strategies = self._interned.get(key)
        if strategies is None:
            strategies = self._interned[key] = JointStrategies(len(self._interned), key)
        return strategies

    def of_rule(self, rule: Rule, masks: Sequence[int], partials: Sequence[int]) -> JointStrategies:
        """Return the states of an op.

        Parameters
        ----------
        rule : Rule
        masks : sequence of int
            Per axis; bit i: it reaches factor i.
        partials : sequence of int
            Per axis; bit i: operand i may be a partial sum.

        Raises
        ------
        TooManyStates
        """
        key = ("op", self.forms.rule_number(rule), tuple(masks), tuple(partials))
        strategies = self._known.get(key)
        if strategies is None:
            columns = [
                self.forms.of_rule(rule, n, mask, partial, {}).items
                for n, mask, partial in zip(self.ranks, masks, partials)
            ]
            together = [x for x in _product(columns) if self._walks(rule, x)]
            strategies = self._known[key] = self.intern(together)
        return strategies

    def _walks(self, rule: Rule, state: JointStrategy) -> bool:
        """Return whether every factor has parts for all axes that follow it."""
        walked: dict[int, list[int]] = {}
        for n, strategy in zip(self.ranks, state):
            if strategy.factor is not None:
                walked.setdefault(strategy.factor, []).append(n)
        return all(
            factor_fits(rule.factors[f], n, math.prod(parts) // n)
            for f, parts in walked.items()
            if len(parts) > 1
            for n in parts
        )

    def ends(
        self, columns: Sequence[Sequence[OpStrategy]], shape: Sequence[Any] | None
    ) -> JointStrategies:
        """Return the states of a node that is no op, from its alternatives along each axis.

        Parameters
        ----------
        columns : sequence of sequence of OpStrategy
        shape : sequence, optional
            Of its value, whose dims are to have parts for all axes that cut them, unless none of
            these has a choice.

        Raises
        ------
        TooManyStates
        """
        sizes = None if shape is None else tuple([_known(n) for n in shape])
        key = ("end", tuple(map(tuple, columns)), sizes)
        strategies = self._known.get(key)
        if strategies is None:
            free = [len(column) > 1 for column in columns]
            together = [x for x in _product(columns) if sizes is None or self._cuts(x, sizes, free)]
            strategies = self._known[key] = self.intern(together)
        return strategies

    def _cuts(
        self, state: JointStrategy, shape: Sequence[int | None], free: Sequence[bool]
    ) -> bool:
        cut: dict[int, list[int]] = {}
        for a, strategy in enumerate(state):
            for label in {*strategy.needs, *strategy.gives}:
                if label >= 0:
                    cut.setdefault(label, []).append(a)
        for d, axes in cut.items():
            if len(axes) < 2 or not any(free[a] for a in axes):
                continue
            parts = math.prod(self.ranks[a] for a in axes)
            if not all(fits(shape[d], self.ranks[a], parts // self.ranks[a], True) for a in axes):
                return False
        return True

    def whole(self, operands: int, results: int) -> JointStrategies:
        """Return the only state of a replicated node."""
        return self.ends([self.forms.whole(operands, results).items] * len(self.ranks), None)

    def turned(self, states: JointStrategies) -> JointStrategies:
        """Exchange producer and consumer: a producer inside a function is a consumer outside."""
        key = ("turned", states.number)
        strategies = self._known.get(key)
        if strategies is None:
            strategies = self._known[key] = self.intern(
                [
                    tuple([OpStrategy(x.gives, x.needs, x.factor) for x in state])
                    for state in states.items
                ]
            )
        return strategies


def _known(size: Any) -> int | None:
    """Return a size as a number; None for a symbolic size, which is assumed to divide."""
    return int(size) if isinstance(size, int | tirx.IntImm) else None


def _product(columns: Sequence[Sequence[OpStrategy]]) -> list[JointStrategy]:
    """Return all combinations, the first axis' last alternatives last."""
    if math.prod(map(len, columns)) > MOST_STATES:
        raise TooManyStates
    return list(itertools.product(*columns))


__all__ = [
    "JointForms",
    "JointProblem",
    "JointStrategies",
    "JointStrategy",
    "JointSummary",
    "TooManyStates",
]
